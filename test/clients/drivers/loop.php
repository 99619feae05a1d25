<?php
// The driver of the loop for PHP in docs/loops.md: loop.php LOOP detached ELECTION
// CANDIDATE (see ../README.md). LOOP is the code as it is there.

[, $loop, , $election, $candidate] = $argv;
require $loop;

function say(...$words): void
{
    fwrite(STDOUT, implode(' ', [...$words, hrtime(true)]) . "\n");
}

function ask(PDO $db, string $sql, ...$values)
{
    $statement = $db->prepare($sql);
    $statement->execute($values);
    return $statement->fetch(PDO::FETCH_NUM);
}

$asked = hrtime(true);          // a time before the loop has looked whether it leads
$announced = $written = null;
$turn = 0;
stream_set_blocking(STDIN, false);

say('ready');
lead($election, $candidate, function (PDO $db, int $term) use (&$asked, &$announced, &$written, &$turn, $election, $candidate) {
    if ($term !== $announced) {
        say('elected', $term);
    }
    $announced = $term;
    say('working', $term, $asked);
    [$command, $ms] = explode(' ', trim((string) fgets(STDIN))) + ['', 0];
    if ($command === 'hang') {
        usleep($ms * 1000);
    }
    for ($last = hrtime(true) + (int) $ms * 1_000_000; $command === 'work' && hrtime(true) < $last; usleep(20000)) {
        say('working', $term, hrtime(true));    // until the loop ends it
    }
    if ($written) {             // the server's word that the last write was committed
        [[$in_term, $xact], $written] = [$written, null];
        if (ask($db, 'SELECT pg_xact_status(?)', $xact)[0] === 'committed') {
            say('wrote', $in_term);
        }
    }
    usleep(20000);
    if (++$turn % 5 === 0) {
        $written = [$term, ask($db, 'SELECT pg_current_xact_id(), conformance.write(?, ?, ?)', $election, $candidate, $term)[0]];
    }
    $asked = hrtime(true);
}, (float) getenv('LEASE'));
say('closed');
