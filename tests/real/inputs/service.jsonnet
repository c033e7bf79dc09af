// A made configuration of many services, with functions, inheritance, comprehensions and recursion.
local fib(n) = if n < 2 then n else fib(n - 1) + fib(n - 2);
local Service(name, port) = {
  name: name,
  port: port,
  env: { LEVEL: 'info', WEIGHT: std.toString(fib(port % 9)) },
  labels+: { app: name, tier: if port % 2 == 0 then 'back' else 'front' },
  url:: 'http://%s:%d/' % [self.name, self.port],
};
local Logged = { env+: { LEVEL: 'debug' }, labels+: { logged: 'yes' } };
local services = [
  Service('s%03d' % n, 8000 + n) + (if n % 3 == 0 then Logged else {})
  for n in std.range(1, 10)
];
{
  services: std.sort(services, function(s) std.md5(s.name)),
  urls: std.join(' ', [s.url for s in services if s.labels.tier == 'front']),
  checksum: std.foldl(function(sum, s) (sum * 31 + s.port + std.length(s.env.WEIGHT)) % 1000003, services, 7),
}
