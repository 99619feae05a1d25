# leader_election: leader election inside PostgreSQL
#
#   make, make install        build and install for the server of PG_CONFIG;
#                             with_pg_leader=no: without the program pg_leader,
#                             with_http=no: without its subcommand stand
#   make install-pg_leader    pg_leader alone, with its manual page and its
#                             completion in bash, into PREFIX=/usr/local
#   make uninstall, uninstall-pg_leader
#   make installcheck         run the suites against an installed server;
#                             installcheck-portable: the portable edition's specs
#   make dist                 the committed sources as an archive for PGXN
#   make portable             the portable edition for pg_tle, into portable/
#   make deb                  Debian packages of the sources, into deb/
#   make test, demo, try, bench
#                             the same from nothing, in a temporary folder; test:
#                             what each change has to pass, five minutes; try:
#                             psql at a throw-away server
#   make test-all             every suite, all of it
#   make check-versions [PG_CONFIGS='...']
#                             the tests with several PostgreSQLs
#   make check-valgrind, check-sanitizers, check-discards, check-load
#                             the tests under a tool (test/README.md)
#   make check-coverage       what of src/ no test reaches (test/coverage)
#   make check-mutants        lines of src/ changed at random (test/mutants)
#   make check-clients        the clients, through the same faults (test/clients)
#   make check-patroni [SECONDS=600] [SEED=1]
#                             docs/patroni.md, and then faults (test/patroni)
#   make check-examples       the papers' Kubernetes objects and systemd units;
#                             the clients as packages
#   make check-browser        the page of pg_leader history --html, in Chromium
#   make check-monitoring     the alerts, with prometheus (test/monitoring)
#   make analyze              static analysis
#   make model                check the model of the protocol (test/model)
#   make chaos [SECONDS=60] [SEED=1] [PROFILE=all] [BUG=NAME]
#                             try to break it: see test/chaos/README.md

EXTENSION = leader_election
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'.*/\1/p" $(EXTENSION).control)
DATA = $(wildcard sql/$(EXTENSION)--*.sql)

# PGXN wants three numbers, which META.json has.
RELEASE = $(EXTENSION)-$(shell sed -n 's/^  "version": "\(.*\)".*/\1/p' META.json)

MODULE_big = leader_election
OBJS = \
	src/base/as_owner.o \
	src/base/clock.o \
	src/base/commit.o \
	src/base/hash.o \
	src/base/incarnation.o \
	src/base/key.o \
	src/base/lock.o \
	src/base/quote.o \
	src/base/room.o \
	src/base/row.o \
	src/base/scan.o \
	src/base/session_lock.o \
	src/base/shape.o \
	src/base/start.o \
	src/base/store.o \
	src/base/table.o \
	src/base/wait.o \
	src/base/trouble.o \
	src/base/wake.o \
	src/base/xact.o \
	src/state/candidacy.o \
	src/state/candidate.o \
	src/state/create.o \
	src/state/drain.o \
	src/state/dropped.o \
	src/state/election.o \
	src/state/epoch.o \
	src/state/field.o \
	src/state/group.o \
	src/state/history.o \
	src/state/lease.o \
	src/state/lease_state.o \
	src/state/mark.o \
	src/state/pause.o \
	src/state/role.o \
	src/state/run.o \
	src/state/seat.o \
	src/rules/contender.o \
	src/rules/eligible.o \
	src/rules/ranking.o \
	src/rules/reasons.o \
	src/rules/request.o \
	src/rules/strategy.o \
	src/rules/vacancy.o \
	src/decide/begin.o \
	src/decide/cap.o \
	src/decide/decision.o \
	src/decide/drop.o \
	src/decide/late_commit.o \
	src/decide/proof.o \
	src/decide/renew.o \
	src/decide/settle.o \
	src/decide/spread.o \
	src/decide/tally.o \
	src/decide/turn.o \
	src/decide/view.o \
	src/decide/yield.o \
	src/session/callback.o \
	src/session/fence.o \
	src/session/keepalive.o \
	src/session/session.o \
	src/api/acquire.o \
	src/api/addition.o \
	src/api/additions.o \
	src/api/additions_columns.o \
	src/api/admin_api.o \
	src/api/arg.o \
	src/api/call.o \
	src/api/campaign.o \
	src/api/detached_api.o \
	src/api/diagnose_alike.o \
	src/api/diagnose_api.o \
	src/api/diagnose_fill.o \
	src/api/diagnose_leader.o \
	src/api/diagnose_locks.o \
	src/api/diagnose_members.o \
	src/api/diagnose_past.o \
	src/api/diagnose_say.o \
	src/api/diagnose_server.o \
	src/api/diagnose_standing.o \
	src/api/diagnose_vacancy.o \
	src/api/drain_api.o \
	src/api/fence_api.o \
	src/api/group_api.o \
	src/api/measure_api.o \
	src/api/members.o \
	src/api/observe_api.o \
	src/api/observed.o \
	src/api/pause_api.o \
	src/api/poll.o \
	src/api/process.o \
	src/api/renew_api.o \
	src/api/script_api.o \
	src/api/session_api.o \
	src/api/stand.o \
	src/api/standbys.o \
	src/worker/announce.o \
	src/worker/attempt.o \
	src/worker/elect.o \
	src/worker/launcher.o \
	src/worker/led.o \
	src/worker/notify.o \
	src/worker/pending.o \
	src/worker/renewal.o \
	src/worker/round.o \
	src/worker/standing.o \
	src/worker/tidy.o \
	src/worker/upkeep.o \
	src/worker/worker.o \
	src/leader_election.o
PG_CPPFLAGS = -I$(srcdir)/src

# The command-line program needs what only Linux has (child subreapers, timers
# that count while the machine sleeps).
LEADER_OBJS = \
	src/bin/address.o \
	src/bin/agent.o \
	src/bin/answer.o \
	src/bin/checker.o \
	src/bin/checker_handle.o \
	src/bin/command.o \
	src/bin/connect.o \
	src/bin/connection.o \
	src/bin/diagnose.o \
	src/bin/duration.o \
	src/bin/environment.o \
	src/bin/event.o \
	src/bin/give_back.o \
	src/bin/guardian.o \
	src/bin/guardian_handle.o \
	src/bin/help.o \
	src/bin/hook.o \
	src/bin/html.o \
	src/bin/http.o \
	src/bin/known.o \
	src/bin/lead.o \
	src/bin/leaders.o \
	src/bin/login.o \
	src/bin/main.o \
	src/bin/message.o \
	src/bin/notification.o \
	src/bin/now.o \
	src/bin/observer.o \
	src/bin/options.o \
	src/bin/page.o \
	src/bin/page_file.o \
	src/bin/paint.o \
	src/bin/params.o \
	src/bin/period.o \
	src/bin/picture.o \
	src/bin/prepare.o \
	src/bin/process.o \
	src/bin/query.o \
	src/bin/reason.o \
	src/bin/reply.o \
	src/bin/run.o \
	src/bin/screen.o \
	src/bin/shell.o \
	src/bin/sidecar.o \
	src/bin/signals.o \
	src/bin/stand.o \
	src/bin/status.o \
	src/bin/style.o \
	src/bin/targets.o \
	src/bin/term_file.o \
	src/bin/text.o \
	src/bin/timeline.o \
	src/bin/waiting.o \
	src/bin/watch.o \
	src/bin/watched.o \
	src/bin/yield.o
ifneq ($(shell uname -s),Linux)
with_pg_leader = no
endif
ifneq ($(with_pg_leader),no)
SCRIPTS_built = pg_leader
endif
EXTRA_CLEAN = pg_leader $(LEADER_OBJS)

# Where install-pg_leader installs. That of the server is none of its business.
PREFIX = /usr/local
LEADER_BIN = $(DESTDIR)$(PREFIX)/bin
LEADER_MAN = $(DESTDIR)$(PREFIX)/share/man/man1
LEADER_COMPLETION = $(DESTDIR)$(PREFIX)/share/bash-completion/completions

# Expected output of both is in expected/.
TEST_OPTS = \
	--inputdir=$(srcdir)/test \
	--load-extension=$(EXTENSION) \
	--encoding=UTF8 \
	--no-locale
REGRESS := $(patsubst test/sql/%.sql,%,$(sort $(wildcard test/sql/*.sql)))
REGRESS_OPTS = $(TEST_OPTS)
ISOLATION := $(patsubst test/specs/%.spec,%,$(sort \
	$(filter-out test/specs/portable_%,$(wildcard test/specs/*.spec))))
ISOLATION_OPTS = $(TEST_OPTS) --outputdir=.
TAP_TESTS = 1
PROVE_TESTS = test/t/*.pl

PG_CONFIG ?= pg_config

# These find or install a PostgreSQL of their own, so they need none here.
SELF_CONTAINED = test test-all demo try bench chaos model analyze dist deb \
	check-browser check-clients check-coverage check-examples check-monitoring \
	check-mutants check-patroni \
	check-versions check-valgrind check-sanitizers check-discards \
	check-load portable

ifneq ($(filter-out $(SELF_CONTAINED),$(or $(MAKECMDGOALS),all)),)
PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(PGXS),)
$(error $(PG_CONFIG) not found: install postgresql-server-dev-NN, or set PG_CONFIG)
endif
include $(PGXS)

# The specs of the portable edition, in a database that has it instead of the extension
PORTABLE_ISOLATION := $(patsubst test/specs/%.spec,%,$(sort $(wildcard test/specs/portable_*.spec)))
.PHONY: installcheck-portable
installcheck-portable:
	psql -Xq -d postgres -c 'DROP DATABASE IF EXISTS isolation_portable' \
		-c 'CREATE DATABASE isolation_portable TEMPLATE template0'
	psql -Xq -d isolation_portable -v anyway=1 -f $(srcdir)/sql/portable.sql
	$(pg_isolation_regress_installcheck) --inputdir=$(srcdir)/test --outputdir=. \
		--use-existing --dbname=isolation_portable $(PORTABLE_ISOLATION)

$(OBJS): $(filter-out src/bin/%,$(wildcard src/*.h src/*/*.h))

# pg_leader stand needs libmicrohttpd.
ifneq ($(with_http),no)
ifeq ($(shell $(CC) $(CPPFLAGS) -include microhttpd.h -E -x c /dev/null >/dev/null 2>&1 && echo found),found)
HTTP_LIBS = -lmicrohttpd -lpthread
src/bin/http.o: override CPPFLAGS += -DUSE_LIBMICROHTTPD
endif
endif

$(LEADER_OBJS): override CPPFLAGS := -DFRONTEND -I$(libpq_srcdir) \
	-DPG_LEADER_VERSION='"$(EXTVERSION)"' $(CPPFLAGS)
$(LEADER_OBJS): $(wildcard src/bin/*.h)
$(LEADER_OBJS): $(EXTENSION).control

# Not a PROGRAM, which PGXS would link with $(OBJS); nor linked with $(LIBS),
# which names libraries of the server.
pg_leader: $(LEADER_OBJS)
	$(CC) $(CFLAGS) $^ -L$(pkglibdir) -L$(libdir) -lpgcommon -lpgport $(libpq) \
		$(HTTP_LIBS) $(LDFLAGS) $(LDFLAGS_EX) -o $@

# PGXS knows no manual pages.
ifneq ($(with_pg_leader),no)
install: install-manual
uninstall: uninstall-manual
endif
.PHONY: install-manual uninstall-manual install-pg_leader uninstall-pg_leader
install-manual:
	$(MKDIR_P) '$(DESTDIR)$(mandir)/man1'
	$(INSTALL_DATA) $(srcdir)/docs/pg_leader.1 '$(DESTDIR)$(mandir)/man1/'
uninstall-manual:
	rm -f '$(DESTDIR)$(mandir)/man1/pg_leader.1'

install-pg_leader: pg_leader
	$(MKDIR_P) '$(LEADER_BIN)' '$(LEADER_MAN)' '$(LEADER_COMPLETION)'
	$(INSTALL_PROGRAM) pg_leader '$(LEADER_BIN)/'
	$(INSTALL_DATA) $(srcdir)/docs/pg_leader.1 '$(LEADER_MAN)/'
	$(INSTALL_DATA) $(srcdir)/src/bin/pg_leader.bash '$(LEADER_COMPLETION)/pg_leader'
uninstall-pg_leader:
	rm -f '$(LEADER_BIN)/pg_leader' '$(LEADER_MAN)/pg_leader.1' \
		'$(LEADER_COMPLETION)/pg_leader'
endif

.PHONY: $(SELF_CONTAINED)
test:
	@test/run
test-all:
	@test/run all
	@test/clients/run --deployments
	@test/clients/run --all ruby php rust
	@test/clients/run --edition portable
demo:
	@test/demo
try:
	@test/try
bench:
	@bench/run
analyze:
	@test/analyze
check-browser:
	@test/browser/run
check-clients:
	@test/clients/run
	@test/clients/papers
check-monitoring:
	@test/monitoring/run
check-coverage:
	@test/coverage
check-mutants:
	@test/mutants

# The portable edition as an extension of pg_tle: what is for psql is left out, and
# a dump has the rows.
PORTABLE = portable
portable:
	@mkdir -p '$(PORTABLE)'
	@{ printf '%s\n' "SELECT pgtle.install_extension('$(EXTENSION)', '$(EXTVERSION)'," \
		"'leader election, the portable edition', \$$_portable_\$$"; \
	awk '/^-- psql: begin/ { skip = 1 } !skip; /^-- psql: end/ { skip = 0 }' sql/portable.sql; \
	for table in election lease history dropped server; do \
		echo "SELECT pg_catalog.pg_extension_config_dump('leader_election.$$table', '');"; \
	done; \
	echo '$$_portable_$$);'; } >'$(PORTABLE)/$(EXTENSION)--$(EXTVERSION).tle.sql'
dist:
	git archive --format=zip --prefix=$(RELEASE)/ --output=$(RELEASE).zip HEAD
deb:
	@test/deb
check-examples:
	@test/examples
	@test/clients/packages
check-patroni:
	@test/patroni/run $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))
check-versions:
	@test/versions $(PG_CONFIGS)
check-valgrind check-sanitizers check-discards check-load:
	@test/run --under $(@:check-%=%) all
chaos:
	@test/chaos/run $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(PROFILE),--profile $(PROFILE)) $(if $(BUG),--bug $(BUG))
model:
	@test/model/run
