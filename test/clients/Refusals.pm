# What a client cannot mend: a wrong password, a database without the extension,
# a role that may not stand. It has to say so with the SQLSTATE, and to end with
# exit status 3, instead of trying for ever.

package Refusals;

use strict;
use warnings;

use Exporter qw(import);
use Network;
use Servers qw(port sql $out);
use Stands;
use Subjects;

our @EXPORT = qw(refusals);

# Name, environment, SQLSTATEs, exit statuses of pg_leader
my @REFUSALS = (
	[ 'wrong password', { PGUSER => 'locked', PGPASSWORD => 'wrong' }, '28P01', '123' ],
	[ 'no extension', { PGDATABASE => 'bare' }, '3F000|42883', '124' ],
	[ 'no EXECUTE', { PGUSER => 'watcher' }, '42501', '125' ],
);

sub refusals
{
	my (@subjects) = @_;
	my @started;
	my $n = 1;

	foreach my $refusal (@REFUSALS)
	{
		my ($name, $env) = @$refusal;

		foreach my $kind (qw(session detached))
		{
			foreach my $subject (@subjects)
			{
				my %env = (PGPORT => port(1), WORKPORT => port(1), WORKHOST => $WORK_HOST,
					PGUSER => 'app', PGPASSWORD => 'app', PGDATABASE => 'postgres',
					PGHOST => address_of($n), CALL_TIMEOUT => 2, SLICE => 1, INTERVAL => 0.2,
					PG_LEADER_OPTIONS => '--once', %$env);

				push @started, [ $refusal,
					start_subject(subject => $subject, kind => $kind,
						election => 'refused', candidate => "$subject-$n", n => $n++,
						env => \%env, log => "$out/refused.err") ];
			}
		}
	}
	await(sub { !grep { !ended($_->[1]) } @started });
	check_refused(@$_) foreach @started;
	stop_subject($_->[1], 0) foreach @started;
	return scalar @started;
}

sub check_refused
{
	my ($refusal, $process) = @_;
	my ($name, undef, $states, $status) = @$refusal;
	my $error = last_event($process, 'error');
	my $who = "$process->{subject} $process->{kind}, $name";

	return note_failure("$who: does not end within $TIMEOUT s, has said: "
		  . join(', ', map { "$_->[0] $_->[3]" } @{ $process->{events} }))
	  unless ended($process);
	if ($process->{subject} eq 'pg_leader')
	{
		note_failure("$who: exit status $process->{exit}")
		  unless $process->{exit} =~ /^(?:$status)$/;
		return;
	}
	note_failure("$who: exit status $process->{exit}") if $process->{exit} != 3;
	return note_failure("$who: no error") unless $error;
	note_failure("$who: error $error->[3]") if $error->[1] !~ /^(?:$states)$/;
	return;
}

1;
