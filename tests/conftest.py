from stores import s3_bucket, s3_server

__all__ = ["s3_bucket", "s3_server"]
