-- wrk: sends the length-prefixed requests of the file named in BENCH_REQUESTS, each once.
-- wrk itself calls request() one time more than it sends, to see what it will get.
local file = assert(io.open(os.getenv("BENCH_REQUESTS"), "rb"))

function request()
  local prefix = file:read(4)
  if not prefix then
    io.stderr:write("the requests in ", os.getenv("BENCH_REQUESTS"), " are used up: ",
      "sending them again would measure duplicates\n")
    os.exit(1)
  end
  local a, b, c, d = prefix:byte(1, 4)
  return file:read(a + b * 256 + c * 65536 + d * 16777216)
end

function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "p999_ms": %f, "max_ms": %f, ' ..
    '"not_2xx": %d, "failed": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, latency:percentile(99.9) / 1e3, latency.max / 1e3,
    summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
