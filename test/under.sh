# shellcheck shell=bash
#
# What test/run does to have the server and pg_leader run under a tool:
#
#	build_under_TOOL         build, and make the programs of the prefix run so
#	show_reports_TOOL        print what concerns us; true if there is anything
#
# TOOL: none, valgrind, sanitizers, discards, load or coverage.
#
# bench/run has the server run under callgrind: replace_postgres, be_patient.

# Programs are slow under a tool, and what they wait for is not to give up.
be_patient() {
	export LE_TEST_TIMEOUT=900
	limit_waits
}

# Puts a script in the place of a program of the prefix, which moves to $UNDER.
replace_program() {
	local program=$WORK/prefix$BINDIR/$1

	as_user mkdir -p "$UNDER"
	mv "$program" "$UNDER/$1"
	cat >"$program"
	chmod 755 "$program"
}

# Servers run under a command; initdb needs none.  pg_ctl, which starts and
# restarts them, is told so: of the installation to which it belongs, which may be a
# copy that a test has made.  What compiles queries is none of our business.
replace_postgres() {
	replace_program pg_ctl <<-END
		#!/bin/sh
		export SERVER="\$(dirname "\$0")/postgres"
		exec $UNDER/pg_ctl "\$@" -p $UNDER/postgres
	END
	cat >"$UNDER/postgres" <<-END
		#!/bin/sh
		exec $* "\$SERVER" "\$@" -c jit=off
	END
	chmod 755 "$UNDER/postgres"
}

build_under_none() {
	build COPT="$WARNINGS"
}

show_reports_none() {
	false
}

# --- valgrind

# What a server that was built with -DUSE_VALGRIND tells it of palloc() makes it
# find much more.  With the last two options a session takes a fifth less time.
# The leases that tests scale are long: only the server is slow.
build_under_valgrind() {
	local valgrind

	UNDER=$WORK/valgrind
	build COPT="$WARNINGS -O1 -g"
	valgrind="valgrind --quiet --num-callers=50 --fullpath-after=$WORK/src/"
	valgrind+=" --suppressions=$TOP/test/valgrind.exceptions"
	valgrind+=" --vgdb=no --vex-guest-chase=no"
	replace_postgres "$valgrind" --leak-check=no --log-file="$UNDER/postgres.%p"
	replace_program pg_leader <<-END
		#!/bin/sh
		exec $valgrind --leak-check=full --show-leak-kinds=definite \
			--log-file=$UNDER/pg_leader.%p $UNDER/pg_leader "\$@"
	END
	be_patient
	export LE_TEST_SLOWNESS=5
}

# Of the server's, those that happened somewhere below our code.
show_reports_valgrind() {
	find "$UNDER" -type f -name '*.[0-9]*' -size +0 -exec cat {} + |
		sed -E 's/^==[0-9]+== ?//' |
		awk -v RS= -v ORS='\n\n' '/\(src\/|leader_election\.so|pg_leader/' |
		grep .
}

# --- AddressSanitizer and UndefinedBehaviorSanitizer

# Only our own code is built with them, so the server has to load the first of
# them before anything else; and start it before other libraries start, which
# call gettext: that would call malloc, that the sanitizer, and that gettext,
# under its own lock.  What tests preload comes after that, and before the
# sanitizer that pg_leader is linked with.  Leaks are for valgrind.
build_under_sanitizers() {
	local first=$WORK/sanitizers/first.so

	UNDER=$WORK/sanitizers
	as_user mkdir "$UNDER"
	as_user cc -shared -fPIC -fsanitize=address -Wl,-z,initfirst -x c \
		-o "$first" /dev/null
	export COPT="$WARNINGS -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
	build
	export ASAN_OPTIONS=log_path=$UNDER/report:detect_leaks=0:verify_asan_link_order=0
	export UBSAN_OPTIONS=print_stacktrace=1
	replace_postgres env \
		"\"LD_PRELOAD=$(cc -print-file-name=libasan.so):$first:\$LD_PRELOAD\""
	be_patient
}

# Beside AddressSanitizer, UndefinedBehaviorSanitizer writes to the standard error
# only.
show_reports_sanitizers() {
	{
		find "$UNDER" -name 'report.*' -exec cat {} +
		find "$WORK" -name '*.log' -exec grep -h -A 20 ' runtime error: ' {} + || :
	} | grep .
}

# --- debug_discard_caches

# The server discards a cache whenever an invalidation of it could arrive.  Code
# that uses an entry for longer reads freed memory then.  Only a server that was
# built with assertions can do that.  TAP tests start servers of their own, without.
build_under_discards() {
	build COPT="$WARNINGS"
	SETTINGS+=('debug_discard_caches = 1')
	be_patient
}

show_reports_discards() {
	false
}

# --- load

# Processes that compute all the time, as long as this one lives: no test may fail
# because the machine is slow. BUSY is how many (10).
build_under_load() {
	local i

	for ((i = 0; i < ${BUSY:-10}; i++)); do
		while kill -0 $$ 2>/dev/null; do :; done &
	done
	build COPT="$WARNINGS"
}

show_reports_load() {
	false
}

# --- coverage

# Each test has counts of its own, so that it is known what it reaches: processes
# write them, as they exit, into the folder that GCOV_PREFIX names.  One that calls
# _exit(), as all do when a server stops at once, has them written by a preloaded library;
# so has a pg_leader that a signal ends.  One that is killed writes nothing.  So at the end of a test its servers stop as fast as
# they can: nothing would be known of what hangs.
# test/coverage reads $COVERAGE, which outlives $WORK.
build_under_coverage() {
	local file perl

	UNDER=${COVERAGE:-$WORK/coverage}
	mkdir -p "$UNDER"
	rm -rf "${UNDER:?}"/*
	mkdir -p "$UNDER"/{notes,tests,seconds}
	cat >"$UNDER/write_counts.h" <<-'END'
		extern void __gcov_dump(void);
		void write_counts(void) __attribute__((weak, visibility("default")));
		void write_counts(void) { __gcov_dump(); }
	END
	cat >"$UNDER/exit.c" <<-'END'
		#define _GNU_SOURCE
		#include <dlfcn.h>
		#include <errno.h>
		#include <signal.h>
		#include <string.h>
		#include <sys/syscall.h>
		#include <unistd.h>

		static void write_all(void)
		{
			void (*write_counts)(void) = dlsym(RTLD_DEFAULT, "write_counts");

			if (write_counts)
				write_counts();
		}

		void _exit(int code)
		{
			write_all();
			syscall(SYS_exit_group, code);
			__builtin_unreachable();
		}

		int raise(int signo)
		{
			if (signo != SIGSTOP)
				write_all();
			return kill(getpid(), signo);
		}

		/* A child writes them as it executes a program, and must not begin again. */
		static pid_t watched;

		static void ended_by(int signo)
		{
			if (getpid() == watched)
				write_all();
			(void) kill(getpid(), signo);
		}

		__attribute__((constructor)) static void watch_signals(void)
		{
			static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE};
			struct sigaction now;

			if (strcmp(program_invocation_short_name, "pg_leader") != 0)
				return;
			watched = getpid();
			for (int i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
			{
				if (sigaction(ends[i], NULL, &now) != 0 || now.sa_handler != SIG_DFL)
					continue;
				now.sa_handler = ended_by;
				now.sa_flags = SA_RESETHAND | SA_NODEFER;
				(void) sigaction(ends[i], &now, NULL);
			}
		}
	END
	cc -shared -fPIC -o "$UNDER/exit.so" "$UNDER/exit.c" -ldl
	# Exported, for tests that build a version of their own.
	export COPT="$WARNINGS -O0 -g --coverage -fprofile-update=atomic -rdynamic -include $UNDER/write_counts.h"
	build
	echo "$WORK/src" >"$UNDER/built"
	cp -r --parents src/*.[ch] src/*/*.[ch] "$UNDER"
	for file in src/*.gcno src/*/*.gcno; do
		file=${file#src/}
		cp "src/$file" "$UNDER/notes/${file//\//-}"
	done
	perl=$(dirname "$(dirname "$("$PG_CONFIG" --pgxs)")")/test/perl
	cat >"$UNDER/CalmEnd.pm" <<-'END'
		package CalmEnd;
		use strict;
		use warnings;
		use PostgreSQL::Test::Cluster;
		no warnings 'redefine';

		my $at_once = \&PostgreSQL::Test::Cluster::teardown_node;

		*PostgreSQL::Test::Cluster::teardown_node = sub {
			my ($node, @params) = @_;

			local $ENV{PGCTLTIMEOUT} = 10;
			$node->stop('fast', fail_ok => 1) or $at_once->($node, @params);
		};
		1;
	END
	cat >"$UNDER/one" <<-END
		#!/bin/bash
		name=\$(basename "\$1" .pl)
		export GCOV_PREFIX=$UNDER/tests/\$name PERL5LIB=$perl:$WORK/src:$UNDER
		perl -MCalmEnd "\$@"
		status=\$?
		echo "\$SECONDS \$status" >"$UNDER/seconds/\$name"
		exit \$status
	END
	chmod 755 "$UNDER/one"
	[ "$(id -u)" -ne 0 ] || chown -R nobody "$UNDER"
	PROVE_FLAGS="${PROVE_FLAGS--j$((2 + 2 * $(nproc)))} --exec $UNDER/one"
	export GCOV_PREFIX=$UNDER/tests/none LD_PRELOAD=$UNDER/exit.so
}

# The server of regress, isolation and pgtap counts for the suite that comes.
count_for() {
	as_user pg_ctl -D "$WORK/data" -s -w stop
	export GCOV_PREFIX=$UNDER/tests/$1
	as_user pg_ctl -D "$WORK/data" -l "$WORK/server.log" -s -w start
}

show_reports_coverage() {
	false
}
