# The driver of the loop for Ruby in docs/loops.md: loop.rb LOOP detached ELECTION
# CANDIDATE (see ../README.md). LOOP is the code as it is there.

$stdout.sync = true
load ARGV[0]
ELECTION, CANDIDATE = ARGV[2, 2]

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC, :nanosecond)
end

def say(*words)
  puts [*words, now].join(" ")
end

def conformance_write(conn, term)
  conn.exec_params("SELECT conformance.write($1, $2, $3), pg_current_xact_id()", [ELECTION, CANDIDATE, term])
      .getvalue(0, 1)
end

commands = Queue.new
Thread.new { $stdin.each_line { |line| commands << line.split } }
asked = now                     # a time before the loop has looked whether it leads
announced = written = nil
turn = 0

say "ready"
lead(ELECTION, CANDIDATE, lease: ENV.fetch("LEASE").to_f) do |conn, term|
  say "elected", term if term != announced
  announced = term
  say "working", term, asked
  command, ms = commands.pop unless commands.empty?
  sleep ms.to_f / 1000 if command == "hang"
  if command == "work"          # until the loop ends it
    last = now + ms.to_i * 1_000_000
    say "working", term, now while sleep(0.02) && now < last
  end
  # The server's word that the last write was committed
  if written
    in_term, xact = written
    written = nil
    say "wrote", in_term if conn.exec_params("SELECT pg_xact_status($1)", [xact]).getvalue(0, 0) == "committed"
  end
  sleep 0.02
  written = [term, conformance_write(conn, term)] if (turn += 1) % 5 == 0
  asked = now
end
say "closed"
