# What is released: META.json is as PGXN's specification 1.0.0 wants it, and all
# versions agree with the control file's, and those of PostgreSQL with each other;
# make dist makes an archive of what is committed, which builds, and installs what
# it should, without a repository.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use JSON::PP;
use List::Util qw(uniq);
use PostgreSQL::Test::Utils;
use Test::More;

my $TOP = abs_path("$FindBin::RealBin/../..");
my $SEMVER = qr/^(?:0|[1-9]\d*)(?:\.(?:0|[1-9]\d*)){2}(?:-?[A-Za-z][0-9A-Za-z-]*)?$/;
my $TERM = qr{^[^\s/\\\x00-\x1f\x7f]{2,}$};
my %REQUIRED = map { $_ => 1 } qw(abstract license maintainer meta-spec name provides version);
my %OPTIONAL = map { $_ => 1 } qw(description generated_by no_index prereqs release_status resources tags);
my $LICENSES = qr/^(?:agpl_3|apache_[12]_\d|artistic_[12]|bsd|freebsd|gfdl_1_[23]|gpl_[123]|lgpl_[23]_[01]|mit|mozilla_1_[01]|openssl|perl_5|postgresql|qpl_1_0|ssleay|sun|zlib|open_source|restricted|unrestricted|unknown)$/;

my ($control_version) = slurp_file("$TOP/leader_election.control") =~ /^default_version *= *'(.*)'/m;

sub is_text { return defined $_[0] && !ref $_[0] && $_[0] =~ /\S/; }

# What the specification does not allow in META.json, and what does not fit the
# other files.
sub faults_of
{
	my ($meta) = @_;
	my @faults = map { "no $_" } grep { !exists $meta->{$_} } sort keys %REQUIRED;
	my $check = sub { my ($what, $ok) = @_; push @faults, $what unless $ok; };

	$check->("$_ means nothing", $REQUIRED{$_} || $OPTIONAL{$_} || /^x_/i) foreach sort keys %$meta;
	return @faults if @faults;

	$check->('name', $meta->{name} =~ $TERM);
	$check->('abstract', is_text($meta->{abstract}));
	$check->('description', !exists $meta->{description} || is_text($meta->{description}));
	my @maintainers = ref $meta->{maintainer} ? @{ $meta->{maintainer} } : $meta->{maintainer};
	$check->('maintainer', @maintainers && !(grep { !is_text($_) } @maintainers));
	my @licenses = ref $meta->{license} eq 'ARRAY' ? @{ $meta->{license} } : $meta->{license};
	$check->('license', @licenses && !(grep { $_ !~ $LICENSES } @licenses));
	$check->('version', $meta->{version} =~ $SEMVER);
	$check->('meta-spec', ($meta->{'meta-spec'}{version} // '') eq '1.0.0');
	$check->('release_status', ($meta->{release_status} // 'stable') =~ /^(?:stable|testing|unstable)$/);
	$check->("tag $_", is_text($_) && length($_) <= 255 && !m{[/\\\x00-\x1f]}) foreach @{ $meta->{tags} // [] };
	foreach my $phase (sort keys %{ $meta->{prereqs} // {} })
	{
		my $relations = $meta->{prereqs}{$phase};

		$check->("prereqs: $phase", $phase =~ /^(?:configure|build|test|runtime|develop)$/);
		foreach my $relation (sort keys %$relations)
		{
			$check->("prereqs: $relation", $relation =~ /^(?:requires|recommends|suggests|conflicts)$/);
			$check->("prereqs: version $_", $_ eq '0' || /^(?:[<>]=? *|[!=]= *)?(.*)$/ && $1 =~ $SEMVER)
			  foreach map { split(/ *, */) } values %{ $relations->{$relation} };
		}
	}
	$check->('provides', %{ $meta->{provides} } > 0);
	foreach my $name (sort keys %{ $meta->{provides} })
	{
		my $extension = $meta->{provides}{$name};

		$check->("provides: $name", $name =~ $TERM);
		$check->('provides: version', ($extension->{version} // '') =~ $SEMVER);
		$check->('provides: file', is_text($extension->{file}));
		$check->("provides: $_", -f "$TOP/$_") foreach grep { defined } @$extension{qw(file docfile)};

		# This extension: the third number is that of a release without changes in SQL.
		$check->('provides: leader_election', $name eq 'leader_election');
		$check->("provides: the script of $control_version", ($extension->{file} // '') eq "sql/$name--$control_version.sql");
		$check->("provides: version $control_version", ($extension->{version} // '') =~ /^\Q$control_version\E\.\d+$/);
		$check->('two versions', ($extension->{version} // '') eq $meta->{version});
	}
	return @faults;
}

my $meta_text = slurp_file("$TOP/META.json");
my $meta = decode_json($meta_text);
my ($debian_version) = slurp_file("$TOP/debian/changelog") =~ /^leader-election \((.*)-[^-]+\)/;

is(join(', ', faults_of($meta)), '', 'META.json');
is($debian_version, $meta->{version}, 'debian/changelog: version');

# What that has to find: [what is changed, what is wrong then]
foreach my $case (
	[ sub { delete $_[0]{license} }, 'no license' ],
	[ sub { delete $_[0]{provides}{leader_election}{file} }, 'provides: file' ],
	[ sub { $_[0]{license} = 'PostgreSQL' }, 'license' ],
	[ sub { $_[0]{licence} = 'postgresql' }, 'licence means nothing' ],
	[ sub { $_[0]{version} = '1.0' }, 'version' ],
	[ sub { $_[0]{version} = '1.0.1' }, 'two versions' ],
	[ sub { $_ = '9.9.0' foreach $_[0]{version}, $_[0]{provides}{leader_election}{version} }, "provides: version $control_version" ],
	[ sub { $_[0]{provides}{leader_election}{docfile} = 'NO.md' }, 'provides: NO.md' ],
	[ sub { $_[0]{'meta-spec'}{version} = '2.0.0' }, 'meta-spec' ],
	[ sub { $_[0]{prereqs}{runtime}{requires}{PostgreSQL} = '15' }, 'prereqs: version 15' ],
	[ sub { $_[0]{release_status} = 'beta' }, 'release_status' ],
	[ sub { push @{ $_[0]{tags} }, 'a/b' }, 'tag a/b' ])
{
	my ($change, $fault) = @$case;
	my $changed = decode_json($meta_text);

	$change->($changed);
	like(join(', ', faults_of($changed)), qr/(?:^|, )\Q$fault\E(?:,|$)/, "found: $fault");
}

# --- the PostgreSQLs that are supported

my @majors = split(/ /, (slurp_file("$TOP/test/lib.sh") =~ /^SUPPORTED='(.*)'/m)[0]);
my ($newest, $oldest) = @majors[0, -1];

is("@majors", join(' ', reverse $oldest .. $newest), 'test/lib.sh: each major, the newest first');

# [file, where it says which, what it has to say]
foreach my $case (
	[ 'README.md', qr/PostgreSQL (\d+ to \d+)/, "$oldest to $newest" ],
	[ 'CHANGELOG.md', qr/PostgreSQL (\d+ to \d+)/, "$oldest to $newest" ],
	[ 'CONTRIBUTING.md', qr/has to work on (\d+ to \d+)/, "$oldest to $newest" ],
	[ 'docs/support.md', qr/^\| PostgreSQL \| (\d+ to \d+)/m, "$oldest to $newest" ],
	[ 'src/compat.h', qr/majors of PostgreSQL, (\d+ to \d+)/, "$oldest to $newest" ],
	[ 'src/compat.h', qr/PG_VERSION_NUM < (\d+)\n#error/, "${oldest}0000" ],
	[ 'META.json', qr/"PostgreSQL": "(.*)"/, "$oldest.0.0" ],
	[ 'debian/pgversions', qr/(.*)/, "$oldest+" ])
{
	my ($file, $where, $range) = @$case;

	is((slurp_file("$TOP/$file") =~ $where)[0], $range, "$file: PostgreSQL $range");
}
is(join(' ', uniq slurp_file("$TOP/docs/support.md") =~ /^\| (\d+)(?!\d|devel)/mg), "@{[$oldest .. $newest]}", 'docs/support.md: what was run on each');

# --- the archive

delete @ENV{qw(MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES)};
delete @ENV{ grep { /^GIT_/ } keys %ENV };

my $folder = PostgreSQL::Test::Utils::tempdir();
my $release = "leader_election-$meta->{version}";
my @git = ('git', '-c', 'user.name=test', '-c', 'user.email=test@localhost', '-c', 'init.defaultBranch=main');
# What is built only has to be there: optimising it takes twice as long.
my @make = ('make', '-s', 'with_llvm=no', 'COPT=-O0 -U_FORTIFY_SOURCE', 'PG_CONFIG=' . ($ENV{PG_CONFIG} // 'pg_config'));

# Of a repository that has the sources as they are now
system_or_bail(@git, 'init', '-q', '--bare', "$folder/repository");
system_or_bail(@git, "--git-dir=$folder/repository", "--work-tree=$TOP", '-c', 'core.bare=false', @$_)
  foreach [ 'add', '-A' ], [ 'commit', '-q', '-m', 'Test' ];
system_or_bail(@git, 'clone', '-q', "$folder/repository", "$folder/clone");
append_to_file("$folder/clone/not_committed", '');
command_ok([ @make, '-C', "$folder/clone", 'dist' ], 'make dist');

my $archive = "$folder/clone/$release.zip";
chomp(my @names = split(/\n/, `unzip -Z1 '$archive'`));
is(join(' ', grep { index($_, "$release/") != 0 } @names), '', 'the archive has one folder');
my %has = map { s,^\Q$release\E/,,r => 1 } @names;
is(join(' ', grep { !$has{$_} } qw(META.json Makefile README.md docs/pg_leader.1 debian/control)), '', '... in which all is');
is(join(' ', grep { $has{$_} } qw(.gitattributes not_committed pg_leader)), '', '... that belongs there');

# It builds where there is no repository, whatever is above.
$ENV{GIT_CEILING_DIRECTORIES} = "$folder/unpacked";
mkdir("$folder/unpacked") or die $!;
system_or_bail('unzip', '-q', $archive, '-d', "$folder/unpacked");
chdir("$folder/unpacked/$release") or die $!;
isnt(system('git rev-parse --git-dir >/dev/null 2>&1'), 0, 'no repository');
command_ok([@make], 'the archive builds');
is(`./pg_leader --version`, "pg_leader (leader_election) $control_version\n", '... the version of the control file');
ok(-x 'test/run', '... its scripts can be run');

# --- what is installed

# The files in a folder, with the last part of the folders that pg_config says:
# that of libraries has several names.
sub installed
{
	my ($root) = @_;
	my @files = split(/\n/, `cd '$root' && find . -type f`);

	return join(' ', sort map { s,.*/(?=[^/]+/[^/]+$),,r =~ s,.*/(?=.*\.so$),lib/,r } @files);
}

my $EXTENSION = "extension/leader_election--$control_version.sql extension/leader_election.control lib/leader_election.so";
my $PROGRAM = 'bin/pg_leader';
my $MANUAL = 'man1/pg_leader.1';

foreach my $case (
	[ 'install', '', "$PROGRAM $EXTENSION $MANUAL" ],
	[ 'install', 'with_pg_leader=no', $EXTENSION ],
	[ 'install-pg_leader', '', "$PROGRAM completions/pg_leader $MANUAL" ])
{
	my ($target, $option, $expected) = @$case;
	my @command = (@make, "DESTDIR=$folder/root", $option || ());

	system('rm', '-rf', "$folder/root");
	system_or_bail(@command, $target);
	is(installed("$folder/root"), $expected, "$target $option");
	system_or_bail(@command, "un$target");
	is(installed("$folder/root"), '', "un$target $option");
}
chdir('/') or die $!;

done_testing();
