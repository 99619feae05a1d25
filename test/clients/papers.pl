# Every example in the papers of the clients, run as it stands there: see
# ../t/028_papers.pl, which does so with the others. These are in languages that
# `make test` does not install.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use lib "$FindBin::RealBin/../t";
use PaperRunner;
use Test::More;

my $TOP = abs_path("$FindBin::RealBin/../..");

BAIL_OUT(missing_for_papers()) if missing_for_papers();
paper_ok($_) foreach map { glob("$TOP/$_") } qw(docs/clients.md docs/frameworks.md docs/loops.md
  clients/*/README.md);
done_testing();
