-- wrk: sends the length-prefixed requests of the file named in BENCH_REQUESTS, each once.
local file = assert(io.open(os.getenv("BENCH_REQUESTS"), "rb"))
local data = file:read("*a")
file:close()
local position = 1
local used_up = 0

function request()
  if position > #data then
    used_up = used_up + 1
    position = 1
  end
  local a, b, c, d = data:byte(position, position + 3)
  local length = a + b * 256 + c * 65536 + d * 16777216
  local text = data:sub(position + 4, position + 3 + length)
  position = position + 4 + length
  return text
end

function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "not_2xx": %d, "failed": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
