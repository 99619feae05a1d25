# Settings of the extension, with nonsense: each that pg_settings has is given
# values that it takes and values that it does not, in each way in which a
# setting can be given, by those who may and by those who may not. What is
# refused changes nothing, and elections work with whatever is taken.
#
# The settings are those of the catalog, and what they take is told by their
# types and limits. A type that has no values here, and a setting that is not
# known to be used by anything here, fail the test.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;

use LeaderElection;
use PostgreSQL::Test::Utils;
use Test::More;

my $EXTENSION = 'leader_election';
my $LONG = 'x' x 100_000;

my $node = new_server(
	config => q(
client_min_messages = warning
listen_addresses = '127.0.0.1'
));
my $super = session($node, name => 'super', host => '127.0.0.1');
$super->query('CREATE ROLE le_app LOGIN;
	GRANT USAGE ON SCHEMA leader_election TO le_app;
	GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO le_app');
$super->query("LOAD '$EXTENSION'");

#
# Settings, and values for each: those that it takes, and those that it does not
#

my @NO_NUMBERS = (
	'', ' ', 'x', '1x', '1 ms s', '-', '+', '--1', 'NaN', 'inf', '1e400', '-1e400', '0x', '1,5', '1.2.3',
	'9' x 400, $LONG, '%s%n', "1'", "\x01", 'NULL', 'on');

my %VALUES = (
	bool => sub {
		return ([qw(on off true FALSE yes no 1 0 t f)],
			[ '', ' ', ' on', 'o', '2', '-1', 'maybe', 'truely', 'NULL', '9' x 400, $LONG, "\x01", '%s%n' ]);
	},
	integer => sub {
		my ($s) = @_;
		my ($min, $max) = @$s{qw(min max)};

		return ([ $min, $max, $s->{boot}, " $max ", "$max.0", sprintf('0x%x', $max) ],
			[
				@NO_NUMBERS, $max + 1, $max * 2, $max + 1000, -$max, $min - 1, $min - 1000, '99999999999', '-99999999999',
				$s->{unit} ? ("$max d", "$max furlong") : ('1 ms')
			]);
	});

my @settings = map {
	my %s;
	@s{qw(name type context min max unit boot)} = split /\|/, $_, -1;
	\%s
} $super->query(
	qq{SELECT name, vartype, context, min_val, max_val, unit, boot_val FROM pg_settings
		WHERE name LIKE '$EXTENSION.%' ORDER BY 1});

# None is left out: those of the sources are there.
my $sources = join('', map { slurp_file($_) } glob("$FindBin::RealBin/../../src/*.c"), glob("$FindBin::RealBin/../../src/*/*.c"));
is(join(' ', map { $_->{name} } @settings), join(' ', sort $sources =~ /\bDefineCustom\w+Variable\(\s*"([\w.]+)"/g),
	'settings: in the catalog, and in the sources');
is_deeply([ map { "$_->{name} $_->{type}" } grep { !$VALUES{ $_->{type} } } @settings ], [], 'each type has values');
is_deeply([ map { "$_->{name} $_->{context}" } grep { $_->{context} !~ /^(user|superuser|sighup)$/ } @settings ],
	[], 'each is set in a way that is tried');
@$_{qw(good bad)} = $VALUES{ $_->{type} }->($_) foreach @settings;

#
# What uses a setting: each sub returns what is wrong, with the setting as it is.
#

my $elections = 0;

sub value_of
{
	my ($session, $name) = @_;

	return scalar $session->query("SELECT setting FROM pg_settings WHERE name = '$name'");
}

# Stands, leads and leaves. Nothing of it fails.
sub wrong_with_leading
{
	my ($session) = @_;
	my $e = "'e" . ++$elections . "'";
	my @wrong;

	foreach my $sql ("create_election($e)", "join($e, 'me')", "is_leader($e)", "renew($e)", "acquire($e, 'd')",
		"resign($e)", "leave_all()", "leave($e, 'd')")
	{
		$session->query("SELECT leader_election.$sql");
		push @wrong, "$sql: " . $session->sqlstate if $session->sqlstate !~ /^(00000|55P03)$/;
		push @wrong, $session->errors if $session->errors =~ /WARNING/;
	}
	return @wrong;
}

my %USED = (
	lease_duration => sub {
		my ($session, $value) = @_;
		my $e = "'e" . ++$elections . "'";

		$session->query("SELECT leader_election.create_election($e)");
		my $ms = $session->query("SELECT (extract(epoch FROM lease_duration) * 1000)::bigint FROM leader_election.election WHERE election = $e");
		return $ms eq $value ? () : "a lease of $ms ms, not $value";
	},
	auto_create => sub {
		my ($session, $value) = @_;
		my $state = $session->sqlstate_of("SELECT leader_election.join('e" . ++$elections . "', 'me')");

		$session->query('SELECT leader_election.leave_all()');
		return $state eq ($value eq 'on' ? '00000' : 'LE003') ? () : "$state with $value";
	},
	dead_peer_detection => \&wrong_with_leading,
	history_retention => \&wrong_with_leading,
	worker_idle_timeout => \&wrong_with_leading);

is_deeply([ map { $_->{name} =~ s/.*\.//r } @settings ], [ sort keys %USED ], 'each is used by something here');

# What is wrong with a session that has a setting as it is said
sub wrong_with
{
	my ($session, $s, $expected) = @_;
	my $is = value_of($session, $s->{name});
	my @wrong = ($USED{ $s->{name} =~ s/.*\.//r }->($session, $is), wrong_with_leading($session));

	push @wrong, "$is, not $expected" if defined $expected && $is ne $expected;
	return map { "$s->{name} = $is: $_" } @wrong;
}

sub literal { return "'" . $_[0] =~ s/'/''/gr . "'"; }
sub shown { return length $_[0] > 50 ? substr($_[0], 0, 50) . '...' : $_[0]; }

# What of all values of all settings is wrong, as a check says: one for each
sub check_all
{
	my ($what, $check) = @_;
	my @wrong;
	my $n = 0;

	foreach my $s (@settings)
	{
		foreach my $value ((map { [ 1, $_ ] } @{ $s->{good} }), map { [ 0, $_ ] } @{ $s->{bad} })
		{
			my @answer = $check->($s, @$value);

			push @wrong, map { "$s->{name} = " . shown($value->[1]) . ": $_" } @answer;
			$n++;
		}
	}
	ok(!@wrong, "$what: $n values") or diag(join("\n", @wrong));
	return;
}

#
# SET: by a superuser, and by others
#

# What SET comes to: a value that is taken, or a SQLSTATE
my %REFUSED = (
	super => { sighup => '55P02' },
	le_app => { sighup => '55P02', superuser => '42501' });

my $app = session($node, name => 'le_app', user => 'le_app', host => '127.0.0.1');
$app->query("SELECT leader_election.is_leader('e')");
foreach my $session ($super, $app)
{
	my $who = $session == $super ? 'super' : 'le_app';

	check_all(
		"SET as $who",
		sub {
			my ($s, $is_good, $value) = @_;
			my $before = value_of($session, $s->{name});
			my $state = $session->sqlstate_of("SET $s->{name} = " . literal($value));
			my $refused = $REFUSED{$who}{ $s->{context} };
			my @wrong;

			push @wrong, $state unless $state =~ ($refused ? qr/^($refused|22023)$/ : $is_good ? qr/^00000$/ : qr/^22023$/);
			push @wrong, 'it has changed' if $state ne '00000' && value_of($session, $s->{name}) ne $before;
			push @wrong, 'the session is lost' unless $session->alive;
			push @wrong, wrong_with($session, $s) if $state eq '00000';
			$session->query("RESET $s->{name}");
			push @wrong, 'it is not reset' if value_of($session, $s->{name}) ne $before;
			return @wrong;
		});
}

foreach my $name ("$EXTENSION.no_such_setting", "$EXTENSION.", "$EXTENSION.lease_duration.x", "$EXTENSION.\"%s%n\"")
{
	isnt($super->sqlstate_of("SET $name = 1"), '00000', "no such setting: $name");
}

#
# ALTER SYSTEM, and the file: what the server's processes read anew
#

my $worker = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'leader_election%'";

check_all(
	'ALTER SYSTEM',
	sub {
		my ($s, $is_good, $value) = @_;
		my $before = value_of($super, $s->{name});
		my $state = $super->sqlstate_of("ALTER SYSTEM SET $s->{name} = " . literal($value));
		my @wrong;

		push @wrong, $state if $state ne ($is_good ? '00000' : '22023');
		if ($state eq '00000')
		{
			my $was = $super->query('SELECT pg_conf_load_time()');

			$super->query('SELECT pg_reload_conf()');
			wait_until(sub { $super->query("SELECT pg_conf_load_time() > '$was'") eq 't' }, 'the file to be read');
			my $new = session($node, name => 'new', host => '127.0.0.1');
			$new->query("LOAD '$EXTENSION'");
			push @wrong, wrong_with($new, $s);
			$new->finish;
			$super->query("ALTER SYSTEM RESET $s->{name}; SELECT pg_reload_conf()");
			wait_until(sub { value_of($super, $s->{name}) eq $before }, "$s->{name} to be reset");
		}
		return @wrong;
	});

# The file is not read by those who know what is good for a setting.
my $conf = $node->data_dir . '/postgresql.conf';
my $file = slurp_file($conf);

sub write_conf
{
	my ($text) = @_;

	open(my $handle, '>', $conf) or die "$conf: $!";
	print $handle $file, $text;
	close($handle);
	return;
}

# The nth bad value of each setting, as lines of the file
sub bad_lines
{
	my ($n) = @_;

	return join('', map { my $bad = $_->{bad}; "$_->{name} = " . literal($bad->[ $n % @$bad ]) . "\n" } @settings);
}

my ($most) = sort { $b <=> $a } map { scalar @{ $_->{bad} } } @settings;

# The worker is there to read the file, too.
$app->query("SELECT leader_election.join('lasts', 'app')");
foreach my $n (0 .. $most - 1)
{
	my $was = $super->query('SELECT pg_conf_load_time()');
	my @wrong;

	write_conf(bad_lines($n));
	$node->reload;
	wait_until(sub { $super->query("SELECT pg_conf_load_time() > '$was'") eq 't' }, 'the file to be read');
	my $new = session($node, name => 'new', host => '127.0.0.1');
	$new->query("LOAD '$EXTENSION'");
	push @wrong, map { wrong_with($_, $settings[ $n % @settings ], $settings[ $n % @settings ]{boot}) } $super, $new;
	push @wrong, 'settings are not as they were' if grep { value_of($new, $_->{name}) ne $_->{boot} } @settings;
	is(join("\n", @wrong), '', "bad values in the file: $n");
	$new->finish;
}
is($super->query($worker), '1', 'there is a worker');
is($app->query("SELECT leader_election.is_leader('lasts')"), 't', 'who led leads on');

#
# What a connection brings, and a role has, before the library is loaded
#

write_conf('');
$node->reload;
foreach my $s (@settings)
{
	foreach my $value (grep { !/[\x01'\\]/ && length $_ < 1000 } @{ $s->{bad} })
	{
		my $word = $value =~ s/ /\\\\ /gr;
		my $one = eval { session($node, name => 'one', host => '127.0.0.1', options => "-c $s->{name}=$word") };

		# A server without the library knows of no name with a dot what is bad.
		ok($one, "-c $s->{name}=" . shown($value)) or next;
		$one->query("LOAD '$EXTENSION'");
		is(join("\n", wrong_with($one, $s, $s->{boot})), '', '... is as if it was not given');
		$one->finish;
	}

	# Nor may a role bring what it may not set.
	my ($other) = grep { $_ ne $s->{boot} } $s->{type} eq 'bool' ? qw(on off) : ($s->{max}, $s->{min});
	my $one = session($node, name => 'one', user => 'le_app', host => '127.0.0.1', options => "-c $s->{name}=$other");
	$one->query("SELECT leader_election.is_leader('e')");
	is(value_of($one, $s->{name}), $s->{context} eq 'user' ? $other : $s->{boot},
		"$s->{name}, which is for $s->{context}, brought by a role");
	$one->finish;
}

#
# A server that loads the library at first
#

$_->finish foreach $super, $app;
write_conf("shared_preload_libraries = '$EXTENSION'\n" . bad_lines(0));
$node->stop;
ok($node->start(fail_ok => 1), 'a server with bad values in its file starts');
$super = session($node, name => 'super', host => '127.0.0.1');
foreach my $s (@settings)
{
	is(join("\n", wrong_with($super, $s, $s->{boot})), '', "$s->{name} is as if it was not given");
}
my @bad_starts = map { my $s = $_; map { [ $s->{name}, $_ ] } grep { !/[\x01'\\ ]/ && length $_ < 1000 } @{ $s->{bad} } } @settings;
my @connected = grep { eval { session($node, name => 'bad', options => "-c $_->[0]=$_->[1]")->finish; 1 } } @bad_starts;
is(join(' ', map { "$_->[0]=$_->[1]" } @connected), '', scalar(@bad_starts) . ' bad values, which nobody can bring');
is($super->query('SELECT 1'), '1', 'all is well with the others');

my $log = slurp_file($node->logfile);
is_deeply([ $log =~ /^(.* XX\d\d\d: .*|.*(?:PANIC|TRAP): .*|.*leak.*|.*terminated by signal.*)/mg ], [], 'nothing worse in the log');
$super->finish;
$node->stop;
done_testing();
