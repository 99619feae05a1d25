# The programs that watch, for monitoring.pl: prometheus-postgres-exporter, one
# for each server, and prometheus, which asks them each second. They end with the
# test.
#
#	my $exporter = start_exporter($node, 'role', "$TOP/monitoring/queries.yaml");
#	my $prometheus = start_prometheus($rules, primary => $exporter, ...);
#	my @samples = samples($prometheus, 'up == 1');
#	my ($labels, $value) = @{ $samples[0] };

package Prometheus;

use strict;
use warnings;

use Exporter qw(import);
use HTTP::Tiny;
use JSON::PP;
use LeaderElection;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();

our @EXPORT = qw(page samples start_exporter start_prometheus);

my $http = HTTP::Tiny->new(timeout => 30);
my @started;

END
{
	local $?;

	kill('KILL', @started);
	waitpid($_, 0) foreach @started;
}

sub _start
{
	my ($log, $environment, @command) = @_;
	my $pid = fork() // die "fork: $!";

	if ($pid == 0)
	{
		%ENV = (%ENV, %$environment);
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>>', $log);
		open(STDERR, '>&', \*STDOUT);
		exec(@command) or POSIX::_exit(127);
	}
	push @started, $pid;
	return;
}

# The text at an address of this machine; undef: there is none (yet).
sub page
{
	my ($address, $path) = @_;
	my $answer = $http->get("http://$address$path");

	return $answer->{success} ? $answer->{content} : undef;
}

sub _wait_for_page
{
	my ($what, $address, $path, $log) = @_;

	wait_until(sub { defined page($address, $path) }, sub { "$what: " . slurp_file($log) });
	return $address;
}

# Has that role watch a server, by these queries alone: returns the address.
sub start_exporter
{
	my ($node, $role, $queries) = @_;
	my $address = '127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
	my $log = "$PostgreSQL::Test::Utils::log_path/exporter_" . $node->name . '.log';
	my $host = $node->host;
	my $port = $node->port;

	_start($log,
		{ DATA_SOURCE_NAME => "user=$role host=$host port=$port dbname=postgres sslmode=disable" },
		'prometheus-postgres-exporter', "--web.listen-address=$address",
		'--disable-default-metrics', '--disable-settings-metrics',
		'--no-collector.database', '--no-collector.bgwriter',
		"--extend.query-path=$queries");
	return _wait_for_page('the exporter', $address, '/metrics', $log);
}

# Has these exporters asked each second, and evaluates the rules as often:
# returns the address.
sub start_prometheus
{
	my ($rules, %exporters) = @_;
	my $folder = PostgreSQL::Test::Utils::tempdir();
	my $address = '127.0.0.1:' . PostgreSQL::Test::Cluster::get_free_port();
	my $log = "$PostgreSQL::Test::Utils::log_path/prometheus.log";
	my %every = (scrape_interval => '1s', scrape_timeout => '1s', evaluation_interval => '1s');

	append_to_file("$folder/rules.yml", $rules);
	# What is JSON is YAML.
	append_to_file("$folder/prometheus.yml", encode_json({
		global => \%every,
		rule_files => ['rules.yml'],
		scrape_configs => [ {
			job_name => 'postgres',
			static_configs => [ map { { targets => [ $exporters{$_} ], labels => { server => $_ } } }
				sort keys %exporters ],
			metric_relabel_configs => [ { action => 'labeldrop', regex => 'exported_server' } ] } ] }));
	_start($log, {}, 'prometheus', "--config.file=$folder/prometheus.yml",
		"--storage.tsdb.path=$folder/data", "--web.listen-address=$address");
	return _wait_for_page('prometheus', $address, '/-/ready', $log);
}

# What a query has now: a list of [labels, value].
sub samples
{
	my ($prometheus, $query) = @_;
	my $answer = $http->post_form("http://$prometheus/api/v1/query", { query => $query });
	my $content = decode_json($answer->{content});

	die "$query: $content->{error}\n" if $content->{status} ne 'success';
	return map { [ $_->{metric}, $_->{value}[1] ] } @{ $content->{data}{result} };
}

1;
