import os
import signal

from hypothesis import settings

from helpers.stores import azure_container, azurite, gcs_bucket, s3_bucket, s3_server

__all__ = ["azure_container", "azurite", "gcs_bucket", "s3_bucket", "s3_server"]

# A shell starts a background job with SIGINT ignored, which children inherit: tests of Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What only changes how printed text looks would change it in what tests compare. A proxy that the shell names must not
# be asked for servers on this machine.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
    os.environ.pop(name, None)
for name in ("NO_PROXY", "no_proxy"):
    os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost", "::1"]))

settings.register_profile("feedmill", deadline=None)  # a busy machine is no failure
settings.register_profile("repeatable", deadline=None, derandomize=True)  # for `make test`: the same on every machine
settings.load_profile("feedmill")
