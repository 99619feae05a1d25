use strict; use warnings; use FindBin; use lib $FindBin::RealBin; use LeaderElection; use Test::More;
my $node = new_server();
my $c = session($node); $c->query("select leader_election.join('a','b')");
my $o = session($node, name=>'o'); $o->query_async("CALL leader_election.wait_for_change('a', 1, 'b')");
wait_for($node, "select count(*)=1 from pg_stat_activity where wait_event_type='Extension' and pid=".$o->backend_pid);
$o->kill;
note eval { wait_for($node, "select count(*)=0 from pg_stat_activity where pid=".$o->backend_pid, 't', 8) } // "orphan stays";
ok 1; done_testing();
