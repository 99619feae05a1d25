# Runs the blocks of papers (Papers.pm): for 028_papers.pl, and for those of the
# clients ../clients/papers.pl.
#
#	plan skip_all => missing_for_papers() if missing_for_papers();
#	paper_ok($file);
#	foreach (run_paper($markdown)) { my ($line, $language, $wrong) = @$_; ... }
#
# A paper begins with a database "app" with the extension, and a role "app" that
# may stand; or, if it has CREATE EXTENSION leader_election or installs the portable
# edition, without both. SQL is run by psql, as superuser; other programs find the
# database and the role in their environment, and in the service "app". A superuser is
# named postgres. What is in sql/ is in the present folder.
#
# What would need another machine is only checked: whether make knows the target,
# the script is there and knows its arguments, pg_leader its options, docker's file is
# there and has that service. That is so
# for commands of a few names and no others: no paper can ask for it.

package PaperRunner;

use strict;
use warnings;

use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(basename dirname);
use File::Path qw(make_path);
use IPC::Run;
use JSON::PP;
use LeaderElection;
use Papers;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;

our @EXPORT = qw(broken_links missing_for_papers paper_ok run_paper);

my $HERE = dirname(abs_path(__FILE__));
my $TOP = abs_path("$HERE/../..");
my $PYTHON = '/usr/bin/python3';
my $JDBC = '/usr/share/java/postgresql.jar';
my @LIBRARIES = (glob('/usr/share/java/spring3-*.jar'),
	map { "/usr/share/java/$_.jar" } qw(commons-logging HikariCP quartz2 slf4j-api slf4j-nop));
# What a block may import, in the order in which it is compiled
my @PACKAGES = ([ 'leaderelection', 'src/main/java/leaderelection/*.java' ],
	[ 'leaderelection.adapters', 'adapters/{,test/}*.java' ]);

# The server of all papers, a superuser's session on it, and the port of sidecars,
# which is 4040 in the papers
my ($node, $psql, $http_port);

# What belongs to the paper that is being run
my ($folder, $output, %sessions, $python, $hidden, @started);

# None outlives this test.
END
{
	my $status = $?;

	kill('KILL', map { -$_->{pid} } @started);
	$? = $status;
}

# What is not installed, if anything is
sub missing_for_papers
{
	foreach my $module (qw(psycopg yaml))
	{
		return "there is no Python module $module"
		  if system("$PYTHON -c 'import $module' >/dev/null 2>&1") != 0;
	}
	return 'there is no pg_leader' unless which('pg_leader');
	return 'there is no curl' unless which('curl');
	return 'there is no JDBC driver' unless -e $JDBC;
	return 'there is no JDK' if system('javac -version >/dev/null 2>&1') != 0;
	return undef;
}

# --- What a paper begins with, and leaves

sub begin_paper
{
	my ($bare) = @_;

	$node //= new_server(config => "listen_addresses = '127.0.0.1'");
	unless ($psql)
	{
		$psql = session($node, name => 'papers');
		$psql->query('CREATE ROLE postgres SUPERUSER LOGIN') if $psql->query('SELECT current_user') ne 'postgres';
	}
	$http_port //= PostgreSQL::Test::Cluster::get_free_port();
	$folder = PostgreSQL::Test::Utils::tempdir();
	make_path("$folder/node_modules");    # as if npm had installed it
	symlink("$TOP/clients/node", "$folder/node_modules/leader-election-postgresql") or die "symlink: $!";
	undef $output;
	$hidden = '';
	$psql->query('CREATE DATABASE app');
	unless ($bare)
	{
		my $app = session($node, dbname => 'app');

		$app->query(
			'CREATE EXTENSION leader_election;
			CREATE ROLE app LOGIN;
			GRANT USAGE ON SCHEMA leader_election TO app;
			GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app');
		$app->finish;
	}
	append_to_file("$folder/pg_service.conf",
		join("\n", '[app]', 'host=' . $node->host, 'port=' . $node->port, 'dbname=app', 'user=app', ''));

	# The programs that examples run
	symlink(which('pg_leader'), "$folder/pg_leader");
	symlink($_, "$folder/" . basename($_)) foreach glob("$TOP/sql/*_to_*.sql");

	# The servers of papers have no extensions, but this one has.
	append_to_file("$folder/portable.sql", "\\set anyway 1\n\\i $TOP/sql/portable.sql\n");
	append_to_file("$folder/scheduler",
		"#!/bin/sh\necho \"scheduler, term \$PG_LEADER_TERM\"\nexec sleep 1000\n");
	append_to_file("$folder/nightly-report", "#!/bin/sh\necho 'nightly report'\n");
	chmod(0755, $folder, "$folder/scheduler", "$folder/nightly-report");
	return;
}

sub end_paper
{
	foreach my $one (@started)
	{
		kill('TERM', -$one->{pid});
		wait_until(sub { ended($one) }, 'the end of a block in the background');
	}
	@started = ();
	$python->{run}->kill_kill if $python;
	undef $python;
	$_->kill foreach values %sessions;
	%sessions = ();

	$psql->query('ALTER SYSTEM RESET ALL');
	$psql->query('SELECT pg_reload_conf()');
	foreach my $name ($psql->query("SELECT quote_ident(datname) FROM pg_database
		WHERE datname <> 'postgres' AND NOT datistemplate"))
	{
		$psql->query("DROP DATABASE $name WITH (FORCE)");
	}
	$psql->query("DROP OWNED BY $_ CASCADE; DROP ROLE $_")
	  foreach $psql->query('SELECT quote_ident(rolname) FROM pg_roles
		WHERE oid >= 16384 AND NOT rolsuper');
	return;
}

sub which
{
	return (grep { -x } map { "$_/$_[0]" } split(/:/, $ENV{PATH}))[0];
}

# --- Running. Each sets $output, and returns what is wrong, if anything is.

# What clients find in their environment. Whatever hosts a block names are this
# server.
sub environment
{
	my ($text) = @_;
	my ($hosts) = $text =~ /\bhost=([\w.,-]+)/;
	my @hosts = split(/,/, $hosts // '');

	return (
		PATH => "$folder:$ENV{PATH}",
		HOME => $folder,
		TMPDIR => $folder,
		LC_ALL => 'C.UTF-8',
		PGHOST => $node->host,
		PGPORT => '' . $node->port,
		PGDATABASE => 'app',
		PGUSER => 'app',
		PGSERVICEFILE => "$folder/pg_service.conf",
		PGSSLMODE => 'disable',
		PYTHONPATH => "$TOP/clients/python",
		NODE_PATH => join(':', "$folder/node_modules", $ENV{NODE_PATH} // (), '/usr/share/nodejs'),
		GO111MODULE => 'off',
		GOFLAGS => '',
		GOPATH => "$folder/go:/usr/share/gocode",
		GOCACHE => "$PostgreSQL::Test::Utils::tmp_check/gocache",
		@hosts ? (PGHOSTADDR => join(',', ('127.0.0.1') x @hosts)) : ());
}

sub state_differs
{
	my ($state, $block, $good) = @_;
	my $expected = $block->{run}{fails} // $good;

	return $state eq $expected ? undef : "$state instead of $expected:\n$output";
}

sub run_sql
{
	my ($block) = @_;
	my $name = $block->{run}{session} // '';

	unless ($sessions{$name})
	{
		$sessions{$name} = session($node, name => $name || 'psql', dbname => 'app');
		$sessions{$name}->query("\\pset format aligned\n\\pset tuples_only off");
	}
	$output = $sessions{$name}->query($block->{text});
	$output .= "\n" . $sessions{$name}->errors =~ s/^NOTICE:.*\n//gmr;
	return "psql: $output" if $output =~ /^(invalid command|\\\w+:)/m;
	return state_differs($sessions{$name}->sqlstate, $block, '00000');
}

# Starts a program in a process group of its own, with its output in a file.
sub start
{
	my ($text, @command) = @_;
	my %environment = environment($text);
	my $one = { output => PostgreSQL::Test::Utils::tempdir() . '/output' };

	append_to_file($one->{output}, '');
	$one->{pid} = fork // die "cannot fork: $!";
	if ($one->{pid} == 0)
	{
		POSIX::setsid();
		delete @ENV{ grep { /^(PG|MAKE|MFLAGS)/ } keys %ENV };
		@ENV{ keys %environment } = values %environment;
		chdir($folder);
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>', $one->{output});
		open(STDERR, '>&', \*STDOUT);
		POSIX::close($_) for 3 .. 63;
		exec(@command) or POSIX::_exit(127);
	}
	push @started, $one;
	return $one;
}

sub ended
{
	my ($one) = @_;

	$one->{status} = $?
	  if !defined $one->{status} && waitpid($one->{pid}, POSIX::WNOHANG()) > 0;
	return defined $one->{status};
}

# Runs a program to its end: its exit status, as a shell has it.
sub run_program
{
	my $one = start(@_);

	wait_until(sub { ended($one) }, sub { "the end of @_: " . slurp_file($one->{output}) });
	@started = grep { $_ != $one } @started;
	$output = slurp_file($one->{output});
	return $one->{status} & 127 ? 128 + ($one->{status} & 127) : $one->{status} >> 8;
}

sub run_sh
{
	my ($block) = @_;
	my $text = $block->{text} =~ s,/usr/local/bin/,$folder/,gr;
	my @command = ('bash', '-eu', '-o', 'pipefail', '-c', $text);

	return check_commands($text) if grep { is_for_another_machine($_) } commands($text);
	if ($block->{run}{terminal})
	{
		my $file = "$folder/on_terminal";

		append_to_file($file, $text);
		@command = ('script', '-qec', "bash -eu $file", '/dev/null');
	}
	if ($block->{run}{background})
	{
		my $one = start($text, @command);

		$output = sub { slurp_file($one->{output}) };
		return undef;
	}
	return state_differs(run_program($text, @command), $block, 0);
}

sub run_crontab
{
	my ($block) = @_;
	my ($command) = $block->{text} =~ /\A(?:[\d*\/,-]+[ \t]+){5}(\S.*)\n\z/;

	return $command ? run_sh({ %$block, text => $command }) : 'no line of crontab';
}

sub run_python
{
	my ($block) = @_;
	my %environment = environment($block->{text});

	unless ($python)
	{
		my ($in, $out) = ('', '');
		local %ENV = (%ENV, %environment);

		delete $ENV{PGAPPNAME};
		$python = { in => \$in, out => \$out };
		$python->{run} =
		  IPC::Run::start([ $PYTHON, '-u', "$HERE/papers.py" ],
			'<', \$in, '>', \$out, '2>&1',
			IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default));
	}
	${ $python->{in} } .= encode_json(
		{ name => 'block', text => $block->{text}, env => \%environment }) . "\n";
	my $state;
	eval {
		$python->{run}->pump until ${ $python->{out} } =~ s/^--end-of-block-- (\w+)\n//m and $state = $1;
		1;
	} or return "Python has ended: $@${ $python->{out} }";
	($output, ${ $python->{out} }) = (${ $python->{out} }, '');
	return state_differs($state, $block, '00000');
}

# A whole program of a language, in a file of its own, together with the hidden
# block before it. Its server is this one.
sub run_file
{
	my ($block, $file, @command) = @_;
	my @parts = ($block->{text}, $hidden);

	$hidden = $block->{hidden} ? $block->{text} : '';
	return undef if $hidden;
	@parts = reverse @parts if $block->{language} eq 'ruby';
	unlink("$folder/$file");
	append_to_file("$folder/$file", join("\n", @parts));
	if ($block->{run}{background})
	{
		my $one = start($block->{text}, @command, "$folder/$file");

		$output = sub { slurp_file($one->{output}) };
		return undef;
	}
	return state_differs(run_program($block->{text}, @command, "$folder/$file"), $block, 0);
}

# A program, or a class that a later one uses
sub run_java
{
	my ($block) = @_;
	my ($class) = $block->{text} =~ /^public (?:class|interface) (\w+)/m;
	my $text = $block->{text};
	my @path = ('-cp', join(':', $JDBC, $folder, @LIBRARIES));
	my @compile = ('javac', @path, '-sourcepath', "$folder/none", '-d', $folder);
	my @run = ('java', '-XX:TieredStopAtLevel=1',
		'-Dorg.apache.commons.logging.Log=org.apache.commons.logging.impl.NoOpLog', @path);

	return 'no public class' unless $class;
	foreach (@PACKAGES)
	{
		my ($package, $sources) = @$_;

		next if $text !~ /^import \Q$package\E\./m || -e "$folder/" . $package =~ tr{.}{/}r;
		run_program('', @compile, glob("$TOP/clients/java/$sources")) == 0 or return $output;
	}
	$text =~ s{jdbc:postgresql://[^/]+/}{'jdbc:postgresql://127.0.0.1:' . $node->port . '/'}e;
	return run_file({ %$block, text => $text, hidden => 0 },
		"$class.java", $text =~ /\bvoid main\(/ ? @run : @compile);
}

sub run_js { return run_file($_[0], 'program.js', 'node'); }
sub run_ruby { return run_file($_[0], 'program.rb', 'ruby'); }
sub run_php { return run_file($_[0], 'program.php', 'php'); }

# What papers do not run: ../clients/run does it with Rust, and Debian has no drivers
# for the others. Elixir reads its text where it is installed.
sub run_not { return undef; }

sub run_elixir
{
	my ($block) = @_;

	return undef unless which('elixir');
	append_to_file("$folder/program.ex", $block->{text});
	return run_program('', 'elixir', '-e', 'Code.string_to_quoted!(File.read!("program.ex"))') == 0
	  ? undef : $output;
}

# Its packages are found without a module proxy: those of Debian, and ours.
sub run_go
{
	my ($block) = @_;
	my ($module) = slurp_file("$TOP/clients/go/go.mod") =~ /^module (\S+)/m;
	my $path = "$folder/go/src/$module";

	unless (-e $path)
	{
		make_path(dirname($path));
		symlink("$TOP/clients/go", $path);
	}
	# lib/pq refuses to work where there is a service file.
	return run_file($block, 'program.go', 'env', '-u', 'PGSERVICEFILE', '-u', 'PGHOSTADDR', 'go', 'run');
}

sub run_yaml
{
	return parsed_by_python($_[0],
		'import yaml
print(len([d for d in yaml.safe_load_all(text) if d]))');
}

sub run_ini
{
	return parsed_by_python($_[0],
		'import configparser
parser = configparser.ConfigParser(interpolation=None)
parser.read_string(text)
print(len(parser.sections()))');
}

# Whether there is something that can be parsed; and whether pg_leader knows the
# options that it has there.
sub parsed_by_python
{
	my ($block, $program) = @_;

	append_to_file("$folder/parsed", $block->{text});
	run_program('', $PYTHON, '-c', "text = open('parsed').read()\n$program");
	unlink("$folder/parsed");
	return $output unless $output =~ /^[1-9]\d*$/;
	return check_pg_leader($block->{text} =~ tr/[],/ /r);
}

sub run_json
{
	my ($block) = @_;

	return eval { decode_json($block->{text}); 1 } ? undef : $@;
}

sub run_text
{
	my ($block) = @_;
	my $printed = sub { ref $output ? $output->() : $output };

	return 'there is no output to compare with' unless defined $output;
	eval {
		wait_until(sub { !output_differs($printed->(), $block) }, 'output')
		  if ref $output;
	};
	return output_differs($printed->(), $block) ? "printed was\n" . $printed->() : undef;
}

# --- What can only be checked

# The commands of a script, a line each, without comments, sudo and variables
sub commands
{
	my ($text) = @_;
	my @commands;

	foreach (split(/\n/, $text =~ s/\\\n//gr))
	{
		s/(^|\s+)#.*$//;
		s/^\s+//;
		s/^((sudo|\w+=('[^']*'|\S*))\s+)+//;
		push @commands, $_ if $_ ne '';
	}
	return @commands;
}

sub is_for_another_machine
{
	my ($program) = split(' ', $_[0]);

	return $program =~ /^(make|docker)$/ || ($program =~ m{^(test|bench)/} && -f "$TOP/$program");
}

sub check_commands
{
	my ($text) = @_;
	my @wrong;

	foreach my $command (commands($text))
	{
		my ($program, @args) = map { tr/'"//dr } split(' ', $command);

		if (!is_for_another_machine($command))
		{
			push @wrong, "$command: is not run, for it stands beside what cannot be run";
		}
		elsif ($program eq 'make')
		{
			run_program('', 'make', '-n', '-C', $TOP, 'PG_CONFIG=' . ($ENV{PG_CONFIG} // 'pg_config'),
				grep { !/^PG_CONFIGS?=/ } @args) == 0
			  or push @wrong, "$command: $output";
		}
		elsif ($program eq 'docker')
		{
			push @wrong, map { "$command: there is no $_" } unknown_to_docker($command);
		}
		else
		{
			push @wrong, map { "$program does not know $_" } unknown_arguments($program, @args);
		}
	}
	undef $output;
	return @wrong ? join("\n", @wrong) : undef;
}

# The file of a docker command if it is not there, or services and targets that are
# not in it
sub unknown_to_docker
{
	my ($command) = @_;
	my ($file) = $command =~ / -f (\S+)/;
	my @names = $command =~ / (?:kill|stop|exec|--target) (\S+)/g;

	return $file // 'file' unless defined $file && -f "$TOP/$file";
	my $text = slurp_file("$TOP/$file");
	return grep { $text !~ /^ +\Q$_\E:|^FROM .* AS \Q$_\E$/m } @names;
}

# Arguments of a script that are neither in its text nor files beside it, nor
# what an option is given.
sub unknown_arguments
{
	my ($program, @args) = @_;
	my $script = slurp_file("$TOP/$program");
	my ($beside) = "$TOP/$program" =~ m{(.*)/};
	my ($after_option, @unknown) = (0);

	foreach my $arg (@args)
	{
		push @unknown, $arg
		  unless ($after_option && $arg !~ /^-/)
		  || index($script, $arg) >= 0
		  || (my @files = (glob("$beside/$arg.*"), glob("$beside/*/$arg.*")));
		$after_option = $arg =~ /^-/;
	}
	return @unknown;
}

sub check_pg_leader
{
	my ($text) = @_;
	my @unknown;

	$text =~ s/(^|\s)#.*//gm;
	while ($text =~ /\bpg_leader\s+([a-z]+)((?:(?!\s--\s).)*)/g)
	{
		my ($subcommand, $args) = ($1, $2);

		return "pg_leader $subcommand: $output"
		  if run_program('', 'pg_leader', $subcommand, '--help') != 0;
		push @unknown, grep { $output !~ /^ .*(?<!\S)\Q$_\E(?=[=,\s])/m }
		  $args =~ /(?<!\S)(--?[a-z]+)/g;
	}
	undef $output;
	return @unknown ? "pg_leader does not know @unknown" : undef;
}

# --- A paper

my %run = (
	sql => \&run_sql,
	sh => \&run_sh,
	python => \&run_python,
	java => \&run_java,
	js => \&run_js,
	go => \&run_go,
	ruby => \&run_ruby,
	php => \&run_php,
	rust => \&run_not,
	csharp => \&run_not,
	elixir => \&run_elixir,
	crontab => \&run_crontab,
	yaml => \&run_yaml,
	ini => \&run_ini,
	json => \&run_json,
	text => \&run_text);

# Runs a paper: for each of its blocks, its line, language, and what is wrong.
sub run_paper
{
	my ($markdown) = @_;
	my @blocks = blocks_of($markdown);
	my @results;

	return unless @blocks;
	begin_paper(scalar grep { /^\s*CREATE EXTENSION leader_election;|-f portable\.sql/m } map { $_->{text} } @blocks);
	foreach my $block (@blocks)
	{
		my $wrong = $block->{fault};

		$block->{text} =~ s/\b4040\b/$http_port/g if $block->{language} =~ /^(sh|python)$/;
		eval { $wrong //= $run{ $block->{language} }->($block); 1 } or $wrong = $@;
		push @results, [ $block->{line}, $block->{language}, $wrong ];
	}
	end_paper();
	return @results;
}

# Links of a paper that lead nowhere
sub broken_links
{
	my ($file, $markdown) = @_;
	my @broken;

	foreach (links_of($markdown))
	{
		my ($path, $heading) = m{^([^#]*)#?(.*)$};
		my $to = $path eq '' ? $file : dirname($file) . "/$path";

		push @broken, $_
		  unless -e $to && ($heading eq '' || grep { $_ eq $heading } headings_of(slurp_file($to)));
	}
	return @broken;
}

# Tests a paper: each of its blocks, and its links.
sub paper_ok
{
	my ($file) = @_;
	my $name = $file =~ s,^\Q$TOP\E/,,r;

	foreach (run_paper(slurp_file($file)))
	{
		my ($line, $language, $wrong) = @$_;

		ok(!defined $wrong, "$name:$line: $language") or diag($wrong);
	}
	is_deeply([ broken_links($file, slurp_file($file)) ], [], "$name: links");
	return;
}

1;
