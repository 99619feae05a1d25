# What HostileServer.pm answers: the statements of pg_leader, each with an answer
# that could be true, and the kinds of nonsense.

package HostileAnswers;

use strict;
use warnings;

use Exporter qw(import);

our @EXPORT = qw(%KINDS any_greeting any_kind error greeting message odd_rows
  random_bytes ready rows statement_of);

my ($BOOL, $INT8, $INT4, $TEXT, $JSON, $NUMERIC, $TIME) = (16, 20, 23, 25, 114, 1700, 1184);

#
# Statements: what they have in them, the types of the answer, its rows. The
# first one that matches counts.
#

my $AT = '2026-11-21 03:00:00+00';
my $AT_MS = '2026-11-21 03:00:00.000';
my $AT_JSON = '"2026-11-21T03:00:00+00:00"';

my @STATEMENTS = map {
	my ($has, $types, $rows, %more) = @$_;
	{ has => $has, types => $types, rows => $rows, %more };
  } (
	[ qr/nspname/, [ ($BOOL) x 3, $TEXT ], [ [ 't', 't', 'f', 'x' ] ], often => 1 ],
	[ qr/pg_backend_pid\(\)/, [ $INT4, $BOOL ], [ [ 1, 'f' ] ] ],
	[ qr/^(UN)?LISTEN /, [], [] ],
	[ qr/set_config/, [$TEXT], [ ['0'] ] ],
	[ qr/^SELECT leader_election\.leader\(/, [$TEXT], [ ['x'] ] ],
	[ qr/'leader_election\.lease_duration'/,
		[ $NUMERIC, $TEXT, $TEXT, $BOOL ], [ [ '3', '3000', undef, 'f' ] ] ],
	[ qr/acquire_any\(/, [ $INT8, $INT8, $BOOL, $TEXT ],
		[ [ 7, 3000, 'f', 'e/1' ], [ 8, 3000, 'f', 'e/2' ] ], grants => 1 ],
	[ qr/FROM leader_election\.(acquire|renew)\(/,
		[ $INT8, $INT8, $BOOL ], [ [ 7, 3000, 'f' ] ], grants => 1 ],
	[ qr/leader_election\.join\(/, [$INT8], [ [7] ] ],
	[ qr/leader_election\.(release|resign)\(/, [$BOOL], [ ['t'] ] ],
	[ qr/count\(leader_election\.leave\(/, [$INT8], [ [2] ] ],
	[ qr/leader_election\.leave\(/, [$BOOL], [ ['t'] ] ],
	[ qr/^SELECT state, waiting_for, leader/,
		[ $TEXT, $TEXT, $TEXT, $NUMERIC ], [ [ 'vacant', undef, undef, undef ] ] ],
	[ qr/^SELECT CASE WHEN paused_at/, [$TEXT], [ ['paused'] ] ],
	[ qr/leads in term/, [$TEXT], [ ['nobody leads: quorum 1 of 2'] ] ],
	[ qr/seats are led/, [$TEXT], [ ['2 of 3 seats are led'] ] ],
	[ qr/SELECT run_done FROM/, [ $NUMERIC, $TEXT ], [ [ '1795230000.5', undef ] ] ],
	[ qr/AS "Waiting for"/, [ $BOOL, $BOOL, ($TEXT) x 3, $INT8, $TEXT, $TEXT, $INT4, ($TEXT) x 2 ],
		[ [ 'f', 'f', 'e', 'led', 'x', 7, $AT, '2.0 s', 1, (undef) x 2 ] ] ],
	[ qr/leader_election\.diagnose\(/, [ ($TEXT) x 4, $JSON ],
		[ [ 'e', 'warning', 'it is late', 'wait', '{"severity":"warning"}' ] ] ],
	[ qr/AS "Position"/, [ $INT4, $TEXT, $TEXT, $INT4, $INT8, $TEXT ],
		[ [ 1, 'x', 'session', 0, undef, 'leads' ] ] ],
	[ qr/row_to_json\(s\)/, [ $JSON, $TEXT ], [ [ '{"election":"e","leader":"x"}', 'x' ] ] ],
	[ qr/\('UTC'::pg_catalog\.text, acquired_at\)/,
		[ $TEXT, $INT8, ($TEXT) x 6, ($NUMERIC) x 4, $TEXT, $INT8 ],
		[
			map {
				my $leads = $_ == 9;
				[ 'e', $_, 'x', 'session', $AT_MS, $leads ? undef : $AT_MS, $leads ? undef : 'resigned', undef,
					1795230000 + $_ * 10, 1795230009 + $_ * 10, undef, 1795230200, '2026-11-21 03:03:20', 4 ]
			} 6 .. 9 ] ],
	[ qr/row_to_json\(h\)/,
		[ $INT8, $TEXT, $TEXT, $TIME, $TIME, $TEXT, $TEXT, $NUMERIC, $NUMERIC, $JSON ],
		[
			map {
				[ $_, 'x', 'session', $AT, $AT, 'resigned', undef,
					1795230000 + $_ * 10, 1795230009 + $_ * 10, qq({"term":$_}) ]
			} 6 .. 9 ] ],
	[ qr/^SELECT name FROM \(SELECT election AS name/, [$TEXT], [ ['f'], ['g'] ] ],
	[ qr/FULL JOIN/,
		[ $TEXT, $TEXT, $INT8, ($TEXT) x 3, $TIME, $JSON, $INT8, $BOOL, $TIME ],
		[ [ 'e', 'state', 7, 'x', undef, undef, $AT, $AT_JSON, 7, 'f', $AT ] ] ],
	[ qr/^WITH h AS/, [ $TEXT, $TEXT, $INT8, ($TEXT) x 3, $TIME, $JSON, $INT8, $BOOL, $TIME ],
		[ [ 'e', 'elected', 8, 'y', 'x', 'resigned', $AT, $AT_JSON, 8, 'f', $AT ] ] ],
	[ qr/'yield_requested'/, [ $TEXT, $TEXT, $INT8, ($TEXT) x 3, $TIME, $JSON, $INT8, $BOOL, $TEXT ],
		[ [ 'e', 'yield_requested', 8, 'y', undef, undef, $AT, $AT_JSON, 8, 'f', undef ] ] ],
	[ qr/'metadata_changed'/, [ $TEXT, $TEXT, $INT8, ($TEXT) x 3, $TIME, $JSON, $INT8, $BOOL, $TEXT ],
		[ [ 'e', 'metadata_changed', 8, 'y', undef, undef, $AT, $AT_JSON, 8, 'f', undef ] ] ],
	[ qr/NOT EXISTS \(SELECT FROM pg_catalog\.json_to_recordset/, [ ($TEXT) x 6, $TIME, $JSON, $INT4, $BOOL, $TEXT ],
		[ [ 'n', 'state', (undef) x 4, $AT, $AT_JSON, 0, 'f', undef ] ] ],
	[ qr/^SELECT election, pg_catalog\.extract/, [ $TEXT, $NUMERIC, $TEXT, $BOOL, $BOOL ],
		[ [ 'e', '2.0', undef, 'f', 'f' ] ] ],
	[ qr/^SELECT metadata FROM/, [$JSON], [ ['{"a": 1}'] ] ],
	[ qr/COALESCE\(channel/, [$TEXT], [ ['leadership_changed'] ] ],
	[ qr/^SELECT term, leader, waiting_for/,
		[ $INT8, $TEXT, $TEXT, $NUMERIC, $BOOL, $INT8 ], [ [ 7, 'x', undef, '0.2', 't', 7 ] ] ],
	[ qr/^SELECT term, leader FROM leader_election\.history/, [ $INT8, $TEXT ], [] ],
	[ qr/leader_election\.request_yield\(/, [$NUMERIC], [ ['1'] ] ]);

# Of all statements
sub patterns { return map { "$_->{has}" } @STATEMENTS; }

sub statement_of
{
	my ($sql) = @_;

	return (grep { $sql =~ $_->{has} } @STATEMENTS)[0];
}

#
# Messages
#

sub any_of { return $_[ rand @_ ]; }

sub message
{
	my ($type, $body) = @_;

	return $type . pack('N', 4 + length $body) . $body;
}

sub ready { return message('Z', 'I'); }

sub fields
{
	my ($severity, $sqlstate, $text) = @_;

	return "S$severity\0V$severity\0C$sqlstate\0M" . ($text // '') =~ tr/\0//dr . "\0\0";
}

sub error { return message('E', fields('ERROR', @_)) . ready(); }
sub notice { return message('N', fields('WARNING', '01000', @_)); }

sub notification
{
	my ($payload) = @_;

	return message('A', pack('N', 1) . "leadership_changed\0" . $payload =~ tr/\0//dr . "\0");
}

sub description
{
	return message('T', pack('n', scalar @_)
		  . join('', map { "c\0" . pack('NnNnNn', 0, 0, $_, 65535, 0xFFFFFFFF, 0) } @_));
}

sub data_row
{
	return message('D', pack('n', scalar @_)
		  . join('', map { defined $_ ? pack('N', length $_) . $_ : pack('N', 0xFFFFFFFF) } @_));
}

sub end_of { return message('C', "$_[0]\0"); }

# An answer, without what comes before and after it
sub rows
{
	my ($types, @rows) = @_;

	return message('n', '') . end_of('LISTEN') unless @$types;
	return description(@$types) . join('', map { data_row(@$_) } @rows)
	  . end_of('SELECT ' . @rows);
}

sub parameter { return message('S', "$_[0]\0$_[1]\0"); }

# What comes first; with more in it
sub greeting
{
	my ($encoding, $more) = @_;

	return message('R', pack('N', 0))
	  . ($more // '')
	  . parameter(server_version => '17.0')
	  . parameter(server_encoding => 'UTF8')
	  . parameter(client_encoding => $encoding // 'UTF8')
	  . parameter(integer_datetimes => 'on')
	  . parameter(standard_conforming_strings => 'on')
	  . parameter(in_hot_standby => 'off')
	  . parameter(default_transaction_read_only => 'off')
	  . message('K', pack('NN', 1, 1))
	  . ready();
}

#
# Values that nobody expects
#

my @VALUES = (
	undef, '', ' ', qw(0 1 -1 t f NaN inf -inf 1e308 -1e308 1e18 -1e18 0x10 1e 7seven),
	2**31, -2**31 - 1, '9223372036854775807', '-9223372036854775808', '9' x 100, '7' x 400,
	"\e[2J\e]0;title\a", "\x07\x08\x1b[31m\x7f", "\x9b31m", "\xc2\x9b31m", "line\r\nline\ttab",
	"\xe2\x80\xae\xe2\x80\x8b\xef\xbb\xbf", "\xff\xfe\xc0\x80", "e\xc3", '"\\\'$(id)`id`;|&<>',
	'<script>alert(1)</script>', '</title><img src=x onerror=alert(1)>', '%s%n%1000000s',
	'{"election":', '[' x 2000, '{"a":"\ud800"}', '../../etc/passwd',
	'e/', '/', 'e/1/2', 'vacant', 'state', 'dropped');

sub odd_value
{
	return any_of('m', "\x1b", "\xe2\x80\xae") x 3_500_000 if rand() < 0.003;
	return any_of(@VALUES);
}

# Some of the values of some rows
sub odd_rows
{
	my (@rows) = @_;
	my $share = any_of(0.1, 0.3, 1);

	return map { [ map { rand() < $share ? odd_value() : $_ } @$_ ] } @rows;
}

sub random_bytes
{
	return join('', map { chr rand 256 } 1 .. 1 + rand 100);
}

sub odd_payload
{
	return any_of(
		'{"election":"e","event":"yield_requested","term":7,"leader":"x"}',
		'{"election":"e/1","event":"yield_requested"', '{"election":"e",' . ('[' x 3000),
		'yield_requested"' x 20, random_bytes(), odd_value() // '');
}

#
# Kinds of nonsense: from the answer as it should be, to bytes or to a way to
# send them.
#

my @STATES = qw(00000 LE001 LE003 LE004 LE005 LE006 25006 25P02 3F000 40001 42501 42883
  42P01 53300 55000 55P03 57014 57P01 58000 XX000 ZZZZZ);
my @ENCODINGS = qw(SQL_ASCII LATIN1 SJIS BIG5 GBK GB18030 EUC_JP MULE_INTERNAL nonsense);

my @ODD_ERRORS = ('', "\0", "C\0\0", 'M' . 'x' x 100, "CXX\0M\0\0");

our %KINDS = (
	'more columns' => sub {
		my ($a) = @_;
		return $a->{before} . rows([ @{ $a->{types} }, 25 ], map { [ @$_, odd_value() ] } @{ $a->{rows} }) . ready();
	},
	'fewer columns' => sub {
		my ($a) = @_;
		my (undef, @types) = @{ $a->{types} };
		return $a->{before} . description(@types) . data_row(map { odd_value() } @types) . end_of('SELECT 1') . ready();
	},
	'no row' => sub { return $_[0]{before} . description(@{ $_[0]{types} }) . end_of('SELECT 0') . ready(); },
	# pg_leader makes all cells of a column as wide as the widest one: with a huge value
	# in each of some columns, hundreds of rows would be gigabytes on its terminal.
	'many rows' => sub {
		my ($a) = @_;
		@{ $a->{rows} } = map { [ map { defined ? substr($_, 0, 10_000) : undef } @$_ ] }
		  map { odd_rows(@{ $a->{rows} }) } 1 .. any_of(2, 10, 300);
		return $a->{before} . rows($a->{types}, @{ $a->{rows} }) . ready();
	},
	'uneven rows' => sub {
		my ($a) = @_;
		return $a->{before} . description(@{ $a->{types} }) . data_row(@{ $a->{rows}[0] // [] }, 'x') . data_row() . end_of('SELECT 2') . ready();
	},
	'wrong lengths' => sub {
		return $_[0]{before} . description(25) . message('D', pack('nN', 1, any_of(0x7FFFFFFF, 0xFFFFFFFE, 100)) . 'x') . end_of('SELECT 1') . ready();
	},
	'two answers' => sub { return $_[0]{before} . rows($_[0]{types}, @{ $_[0]{rows} }) x 2 . ready(); },
	'rows without an end' => sub { return $_[0]{before} . description(@{ $_[0]{types} }) . ready(); },
	'nothing' => sub { return ready() x any_of(1, 2, 5); },
	'an empty query' => sub { return $_[0]{before} . message('I', '') . ready(); },
	'an error' => sub { return error(any_of(@STATES), odd_value()); },
	'an error in the end' => sub { return $_[0]{all} . error(any_of(@STATES), 'too late'); },
	'a fatal error' => sub { return [ 'end', message('E', fields('FATAL', '57P01', "bye\e[2J")) ]; },
	'an error without a text' => sub { return message('E', "CXX000\0M\0\0") . ready(); },
	'a hang-up without a text' => sub { return [ 'end', message('E', "CXX000\0M\0\0") ]; },
	(
		map { my $error = $ODD_ERRORS[$_]; ("an odd error, $_" => sub { return message('E', $error) . ready(); }) }
		  0 .. $#ODD_ERRORS),
	'notices' => sub { return notice(odd_value()) x 300 . $_[0]{all}; },
	'notifications' => sub { return join('', map { notification(odd_payload()) } 1 .. 100) . $_[0]{all}; },
	'another encoding' => sub { return parameter(client_encoding => any_of(@ENCODINGS)) . $_[0]{all}; },
	'copy in' => sub { return $_[0]{before} . message('G', pack('Cnn', 0, 1, 0)) . ready(); },
	'copy out' => sub { return $_[0]{before} . message('H', pack('Cnn', 0, 1, 0)) . message('d', "x\n") . ready(); },
	'copy both' => sub { return $_[0]{before} . message('W', pack('Cnn', 0, 1, 0)); },
	'random bytes' => sub { return random_bytes(); },
	'a random message' => sub { return message(chr rand 256, random_bytes()) . $_[0]{all}; },
	'a hang-up' => sub { return ['end']; },
	'a hang-up in the middle' => sub { return ['middle']; },
	'silence' => sub { return ['silence']; },
	'slow bytes' => sub { return ['slow']; },
	'a flood of notices' => sub { return [ 'flood', '', notice('x' x 100) ]; },
	'a flood of notifications' => sub { return [ 'flood', '', notification('{"election":"e",' . 'x' x 100) ]; },
	'a flood of rows' => sub { return [ 'flood', $_[0]{before} . description(25), data_row('x' x 100) ]; },
	'a flood of answers' => sub { return [ 'flood', $_[0]{before}, end_of('SELECT 1') ]; });

# Mostly values. What takes seconds is rare.
my @LONG = grep { /flood|silence|slow/ } sort keys %KINDS;
my @SHORT = grep { !/flood|silence|slow/ } sort keys %KINDS;

sub short_kinds { return @SHORT; }

sub any_kind
{
	my $dice = rand();

	return $dice < 0.5 ? 'values' : $dice < 0.97 ? any_of(@SHORT) : any_of(@LONG);
}

# What may come instead of a greeting
sub any_greeting
{
	return any_of(
		sub { return error(any_of(@STATES), odd_value()); },
		sub { return message('R', pack('N', any_of(2, 3, 5, 7, 9 .. 12, 99)) . random_bytes()); },
		sub { return message('v', pack('NN', 0, 2) . "a\0b\0") . greeting(); },
		sub { return greeting() x 3; },
		sub { return greeting(any_of(@ENCODINGS)); },
		sub { return greeting('UTF8', notice(odd_value()) x 10 . notification(odd_payload())); },
		sub { return random_bytes(); },
		sub { return 'E' . 'x' x 5000; },
		sub { return ['middle']; },
		sub { return ['end']; })->();
}

1;
