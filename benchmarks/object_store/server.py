"""An S3-compatible server for reading: nginx with Lua on loopback. It counts requests and bytes, and delays answers.

Objects are files: ``ROOT/BUCKET/KEY``. It answers GET, HEAD, ranges and ListObjectsV2, and does not check signatures.
It has a port for each latency. Three settings matter. With ``tcp_nopush``, answers above 64 KB take 40 ms on loopback.
A folder must answer 404, because nginx's 301 makes botocore recurse. With its default ``send_timeout`` of a minute,
nginx truncates the answer to a client that reads slowly, such as a pipe whose buffer is full.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.lib.measure import Failed

LATENCIES = (0, 5, 20, 80)
"""Delays of answers in milliseconds, one per port."""
BUCKET = "bkt"
MODULES = Path("/usr/lib/nginx/modules")
ADVICE = "Install nginx with Lua: `apt-get install nginx-light libnginx-mod-http-lua`."

_LIST = """\
local args, bucket = ngx.req.get_uri_args(), ngx.var.request_uri:match("^/([%w-]+)")
local prefix = type(args.prefix) == "string" and args.prefix or ""
local function escaped(text) return (text:gsub("&", "&amp;"):gsub("<", "&lt;")) end
local out, seen = {}, {}
local find = "find -L . -type f -printf '%P\\\\t%s\\\\t%T@\\\\n' | LC_ALL=C sort"
local files = io.popen("cd '<ROOT>/" .. bucket .. "' && " .. find)
for line in files:lines() do
  local key, size, time = line:match("^(.-)\\t(%d+)\\t(%d+)")
  if key and key:sub(1, #prefix) == prefix then
    local folder = args.delimiter == "/" and key:sub(#prefix + 1):match("^[^/]*/")
    if not folder then
      out[#out + 1] = "<Contents><Key>" .. escaped(key) .. "</Key><Size>" .. size .. '</Size><ETag>"'
        .. string.format("%x-%x", time, size) .. '"</ETag><LastModified>'
        .. os.date("!%Y-%m-%dT%H:%M:%S.000Z", tonumber(time))
        .. "</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
    elseif not seen[folder] then
      seen[folder] = true
      out[#out + 1] = "<CommonPrefixes><Prefix>" .. escaped(prefix .. folder) .. "</Prefix></CommonPrefixes>"
    end
  end
end
files:close()
ngx.header["Content-Type"] = "application/xml"
ngx.print('<?xml version="1.0" encoding="UTF-8"?>'
  .. '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>' .. bucket
  .. "</Name><IsTruncated>false</IsTruncated>" .. table.concat(out) .. "</ListBucketResult>")
"""

_PORT = """\
  server {
    listen 127.0.0.1:<PORT> backlog=4096; set $wait <MS>;
    location / {
      root <ROOT>;
      if ($arg_list-type) { rewrite ^ /__list last; }
      if (-d $request_filename) { rewrite ^ /__missing/ last; }
      access_by_lua_file <RUN>/wait.lua; etag on; max_ranges 1; add_header Accept-Ranges bytes;
      error_page 404 = @missing;
    }
    location @missing {
      internal; default_type application/xml;
      return 404 '<?xml version="1.0"?><Error><Code>NoSuchKey</Code><Message>no such key</Message></Error>';
    }
    location = /__list { internal; access_by_lua_file <RUN>/wait.lua; content_by_lua_file <RUN>/list.lua; }
  }
"""

_CONFIGURATION = """\
load_module <MODULES>/ndk_http_module.so; load_module <MODULES>/ngx_http_lua_module.so;
<USER> worker_processes 1; daemon off; pid <RUN>/nginx.pid; error_log <RUN>/error.log; worker_rlimit_nofile 20000;
events { worker_connections 8192; }
http {
  sendfile on; sendfile_max_chunk 512k; tcp_nopush off; tcp_nodelay on; server_tokens off;
  send_timeout 1h; keepalive_requests 100000000; keepalive_timeout 300; default_type application/octet-stream;
  open_file_cache max=4096 inactive=60s;
  log_format counted '$request_method $status $body_bytes_sent $http_range $uri'; access_log <RUN>/access.log counted;
  client_body_temp_path <RUN>/body; proxy_temp_path <RUN>/proxy; fastcgi_temp_path <RUN>/fastcgi;
  uwsgi_temp_path <RUN>/uwsgi; scgi_temp_path <RUN>/scgi;
<PORTS>}
"""


def missing() -> str:
    """Return what must be installed for the server; empty if nothing is missing."""
    modules = all((MODULES / name).exists() for name in ("ndk_http_module.so", "ngx_http_lua_module.so"))
    return "" if modules and _nginx() else ADVICE


def _nginx() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


@dataclass
class Traffic:
    """The answers of the server during a period.

    Attributes:
        requests: number of requests, including HEAD.
        heads: number of HEAD requests.
        errors: number of answers with a status of 400 and above.
        bytes: bytes of all bodies.
        objects: the ranges of each object that were sent, as (begin, end).
    """

    requests: int = 0
    heads: int = 0
    errors: int = 0
    bytes: int = 0
    objects: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        """Count a line of the log."""
        method, status, size, rest = line.split(" ", 3)
        span, _, path = rest.partition(" ")
        self.requests += 1
        self.heads += method == "HEAD"
        self.errors += int(status) >= 400
        self.bytes += int(size)
        if method == "GET" and status in ("200", "206") and not path.startswith("/__list"):
            begin = int(span.removeprefix("bytes=").partition("-")[0] or 0) if status == "206" else 0
            self.objects.setdefault(path, []).append((begin, begin + int(size)))

    @property
    def again(self) -> int:
        """Return the bytes that were sent more than once."""
        found = 0
        for spans in self.objects.values():
            reached = 0
            for begin, end in sorted(spans):
                found += max(0, min(reached, end) - begin)
                reached = max(reached, end)
        return found


class Server:
    """A running server. It ends with `stop`, or when the process that started it exits or is killed.

    Args:
        root: the folder of the buckets.
        run: a folder for its configuration and log.

    Raises:
        Failed: nginx is missing, or does not start.
    """

    def __init__(self, root: Path, run: Path) -> None:
        program = _nginx()
        if missing() or program is None:
            raise Failed(f"no nginx with Lua. {ADVICE}")
        run.mkdir(parents=True, exist_ok=True)
        self.ports = dict(zip(LATENCIES, _free_ports(len(LATENCIES)), strict=True))
        self._log = run / "access.log"
        self._log.unlink(missing_ok=True)
        values = {"ROOT": str(root), "RUN": str(run), "MODULES": str(MODULES)}
        values["USER"] = "user root;" if os.geteuid() == 0 else ""
        servers = [_filled(_PORT, {"PORT": str(port), "MS": str(ms)}) for ms, port in self.ports.items()]
        (run / "wait.lua").write_text("local ms = tonumber(ngx.var.wait)\nif ms > 0 then ngx.sleep(ms / 1000) end\n")
        (run / "list.lua").write_text(_filled(_LIST, values))
        (run / "nginx.conf").write_text(_filled(_CONFIGURATION, {"PORTS": "".join(servers), **values}))
        command = [program, "-p", str(run), "-c", str(run / "nginx.conf"), "-e", str(run / "error.log")]
        with open(run / "output.log", "wb") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, preexec_fn=_end_with_parent, start_new_session=True
            )
        atexit.register(self.stop)
        if not self._listens():
            self.stop()
            output = (run / "output.log").read_text() + (run / "error.log").read_text()
            raise Failed(f"nginx does not start: {output[-1000:]}")

    def endpoint(self, ms: int) -> str:
        """Return the address of the port that answers after a number of milliseconds."""
        return f"http://127.0.0.1:{self.ports[ms]}"

    def mark(self) -> int:
        """Return the end of the log, once it has every answer."""
        size, now = -1, self._size()
        while now != size:
            time.sleep(0.05)
            size, now = now, self._size()
        return now

    def since(self, mark: int) -> Traffic:
        """Return the traffic since a mark."""
        self.mark()
        traffic = Traffic()
        with open(self._log, encoding="utf-8", errors="replace") as log:
            log.seek(mark)
            for line in log:
                traffic.add(line.rstrip("\n"))
        return traffic

    def stop(self) -> None:
        """End the server."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _listens(self) -> bool:
        for _ in range(200):
            try:
                for port in self.ports.values():
                    socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            except OSError:
                if self._process.poll() is not None:
                    return False
                time.sleep(0.05)
        return False


def settings(endpoint: str, folder: Path) -> dict[str, str]:
    """Return the environment variables with which every loader finds the server.

    Args:
        endpoint: address of the server.
        folder: an existing folder for the file of Multi-Storage Client's profile ``bench``, which Energon reads.
    """
    profile = folder / "msc.yaml"
    profile.write_text(
        "profiles:\n  bench:\n    storage_provider:\n      type: s3\n      options:\n        base_path: ''\n"
        f"        endpoint_url: {endpoint}\n        region_name: us-east-1\n    credentials_provider:\n"
        "      type: S3Credentials\n      options:\n        access_key: a\n        secret_key: b\n"
    )
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "MSC_CONFIG": str(profile),
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def _filled(template: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"<{name}>", value)
    return template


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end_with_parent() -> None:
    """Have the kernel end this process when its parent ends, also by a kill (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
