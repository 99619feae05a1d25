use strict;
use warnings;
use Fcntl qw(:flock F_SETFD);
use Time::HiRes qw(sleep time);

my ($log, $lock_file, @options) = @ARGV;
my %is = map { $_ => 1 } @options;
my $name = "$ENV{PG_LEADER_CANDIDATE} $ENV{PG_LEADER_TERM}";

sub note
{
	open(my $file, '>>', $log) or die;
	syswrite($file, sprintf("%.6f %d %s %s\n", time, $$, $name, $_[0]));
	close($file);
}

open(my $lock, '>>', $lock_file) or die;
fcntl($lock, F_SETFD, 0);
$SIG{TERM} = 'IGNORE' if $is{stubborn};
$SIG{TERM} = sub { note('terminated'); exit 0 } if $is{polite};
note(flock($lock, LOCK_EX | LOCK_NB) ? 'started' : 'OVERLAP');
if ($is{family})
{
	# A child, and a grandchild that has left the session and has no parent.
	fork or do { sleep 1 while 1 };
	fork or do { fork and exit; require POSIX; POSIX::setsid(); sleep 1 while 1 };
	wait;
	note('family');
}
exit 0 if $is{short};
sleep 0.1 while getppid > 1;
