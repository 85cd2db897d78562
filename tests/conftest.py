import signal

from hypothesis import settings

from stores import s3_bucket, s3_server

__all__ = ["s3_bucket", "s3_server"]

# A shell starts a background job with SIGINT ignored, which children inherit: tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("feedmill", deadline=None)  # a busy machine is no failure
settings.register_profile("repeatable", deadline=None, derandomize=True)  # for `make test`: the same on every machine
settings.load_profile("feedmill")
