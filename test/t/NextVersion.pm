# Helpers for the tests of updates: installations of PostgreSQL of the test's
# own, and other versions of the extension to install into them.
#
#	my $install = make_installation('primary');
#	my $node = new_server(name => 'primary', install => $install->{path});
#	install_version($install, '1.1', from => '1.0', protocol => 2,
#		update => update_script(2));
#	$node->safe_psql('postgres', 'ALTER EXTENSION leader_election UPDATE');
#
# The installation that all tests use is left alone: others run at the same time.

package NextVersion;

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(dirname);
use FindBin;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(install_version make_installation update_script);

my $TOP = abs_path("$FindBin::RealBin/../..");
my $HEADER = 'src/leader_election.h';

# Runs a script in bash, with these arguments; its output is told if it fails.
sub run_script
{
	my ($script, @args) = @_;
	my ($out, $err);

	IPC::Run::run([ 'bash', '-euc', $script, 'bash', @args ],
		'<', \undef, '>', \$out, '2>', \$err)
	  or die "failed: $script\n$out\n$err";
	return;
}

# A copy of the installation of that pg_config, by default of the one that the
# tests use (mostly of links to it: test/lib.sh), with the extension as it is in
# the sources, and these sources. other_server: what is built in the sources is for
# another PostgreSQL.
sub make_installation
{
	my ($name, %opts) = @_;
	my $pg_config = $opts{pg_config} // $ENV{PG_CONFIG} // 'pg_config';
	my $work = PostgreSQL::Test::Utils::tempdir($name);
	chomp(my $bindir = `$pg_config --bindir`);
	my $install = {
		path => dirname("$work/prefix$bindir"),
		pg_config => "$work/prefix$bindir/pg_config",
		sources => "$work/src",
		other_server => $opts{other_server}
	};

	run_script('. "$1/test/lib.sh"; WORK=$2 BINDIR=$3; make_prefix',
		$TOP, $work, $bindir);
	run_script('mkdir "$2"; cd "$1"; cp -a Makefile leader_election.control sql src "$2"',
		$TOP, $install->{sources});
	make($install, 'clean') if $install->{other_server};
	make($install, 'install');
	return $install;
}

sub make
{
	my ($install, @args) = @_;

	# No other server runs under the tool that this is for (test/under.sh).
	delete local $ENV{COPT} if $install->{other_server};
	run_script(
		'cd "$1"; config=$2; shift 2; unset MAKEFLAGS MFLAGS MAKELEVEL
		make -s -j2 with_llvm=no with_pg_leader=no PG_CONFIG="$config" "$@"',
		$install->{sources}, $install->{pg_config}, @args);
	return;
}

# Installs a version of the extension that was made of the sources. Options:
#	from       the version that its update script begins with
#	protocol   its protocol number
#	update     the text of that script
sub install_version
{
	my ($install, $version, %opts) = @_;
	my $sources = $install->{sources};

	append_to_file("$sources/sql/leader_election--$opts{from}--$version.sql",
		$opts{update});

	# Only what uses the number is compiled again.
	run_script(
		q(cd "$1"
		sed -i "s/^default_version = .*/default_version = '$2'/" leader_election.control
		sed -i -E "s/^(#define LE_PROTOCOL\s+)[0-9]+/\1$3/" "$4"
		grep -l LE_PROTOCOL src/*/*.c | xargs touch),
		$sources, $version, $opts{protocol}, $HEADER);
	make($install, '-o', $HEADER, 'all');
	make($install, '-o', $HEADER, 'install');
	return;
}

# What an update script has in each case, as CONTRIBUTING.md says: a list of what
# comes first, and what comes last where the number changes.
sub update_script
{
	my ($protocol) = @_;
	my $paper = slurp_file("$TOP/CONTRIBUTING.md");
	my ($first, $last) = $paper =~ /^```sql\n(.*?)^```\n/gms;

	$first =~ s/SELECT \K\d+(?= AS number)/$protocol/
	  or die 'CONTRIBUTING.md has no update script';
	return wantarray ? ($first, $last) : "$first$last";
}

1;
