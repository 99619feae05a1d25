# What is done to the standbys in the profile quorum, in which there are two: the
# table of these faults, with their weights. Those of the same name in Nemesis.pm are
# left out there.

package StandbyFaults;

use strict;
use warnings;

use Cluster;
use Exporter qw(import);
use Failover;
use List::Util qw(shuffle);
use Replication;
use Time::HiRes qw(sleep);

our @EXPORT = qw(%standby_faults);

# Is that what this server has?
sub are_named
{
	my ($n, $names) = @_;

	return slurp("$dir/disk/server$n/chaos.conf") =~ /^synchronous_standby_names = '\Q$names\E'$/m;
}

# Others have to confirm from now on.
sub change_names
{
	my $n = primary();

	return if operation_running();

	my $names = any_names($n);

	return if are_named($n, $names);
	set_synchronous($n, $names);
	return "of server$n";
}

# Several changes in a row, with nobody or with servers that are not there in between
sub change_names_often
{
	my $n = primary();

	return operation('names changed often', sub {
		for (0 .. rand(8))
		{
			set_synchronous($n, rand() < 0.4 ? '' : rand() < 0.2 ? 'ANY 1 (nobody, nowhere)' : any_names($n));
			sleep rand(0.3);
		}
		set_synchronous($n, any_names($n));
	}) ? "of server$n" : undef;
}

# For a while those have to confirm that are not there.
sub name_nobody
{
	my $n = primary();

	return operation('names of nobody', sub {
		set_synchronous($n, Nemesis::pick('ANY 1 (nobody, nowhere)', 'FIRST 1 (nobody)'));
		sleep rand(1.5 * $lease_ms / 1000);
		set_synchronous($n, any_names($n));
	}) ? "of server$n" : undef;
}

# One standby follows the other one for a while.
sub cascade
{
	my ($n, $upstream) = shuffle(standbys());

	return if operation_running() || grep { upstream($_) != primary() } standbys();
	follow($n, $upstream);
	Nemesis::heal(rand(3 * $lease_ms / 1000), sub { follow($n, primary()) unless operation_running() });
	return "server$n follows server$upstream";
}

our %standby_faults = (
	'change names' => [ \&change_names,                                             5 ],
	'change names often' => [ \&change_names_often,                                 4 ],
	'names of nobody' => [ \&name_nobody,                                           3 ],
	'standby forgotten' => [ \&forget_standby,                                      3 ],
	'cascade' => [ \&cascade,                                                       3 ],
	'stop walreceiver' => [ sub { Nemesis::stop_replication('walreceiver') },       4 ],
	'stop startup process' => [ sub { Nemesis::stop_replication('startup') },       3 ],
	'stop walsender' => [ sub { Nemesis::signal_backend('STOP', "backend_type = 'walsender'", 2) }, 3 ],
	'cut replication' => [ sub { operation_running() ? undef : Nemesis::cut('r' . standby(), 3) }, 5 ],
	'slow replication' => [ sub { operation_running() ? undef : Nemesis::slow_down('r' . standby(), 3) }, 4 ],
	'reset replication' => [ sub { operation_running() ? undef : Nemesis::reset_network('r' . standby()) }, 2 ],
	'restart standby' => [ sub { Nemesis::restart('immediate', standby()) },        2 ],
	'immediate restart' => [ sub { Nemesis::restart('immediate', primary()) },      1 ],
	'kill postmaster' => [ sub { Nemesis::restart('kill', primary()) },             1 ],
	'failover, crashed' => [ sub { fail_over('crash') },                            4 ],
	'failover, split' => [ sub { fail_over('split') },                              8 ],
);

1;
