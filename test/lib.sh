# shellcheck shell=bash
#
# Set-up shared by test/run, test/analyze, test/demo, test/try, test/deb,
# test/mutants, test/chaos/run, test/clients/run, test/model/run,
# test/monitoring/run, test/patroni/run, test/day/run and bench/run.
#
# From a bare Debian machine to a running server with the extension:
#
#	set_up [TOOL...]     packages, $WORK, $WORK/src and the private prefix;
#	                     TOOL: apscheduler, asyncpg, cargo, celery, debhelper,
#	                     django, etcd-server, fastapi, gnuplot-nox,
#	                     golang-github-lib-pq-dev, golang-go, iproute2,
#	                     ipc-run, jdbc, jdk, librust-tokio-postgres-dev, man, maven, microhttpd,
#	                     node-cron, nodejs, pdftotext, pg (of node), pg_buildext,
#	                     pgbouncer, pgtap, pip, procps, psycopg, psycopg-pool, psycopg2,
#	                     python3-etcd, quartz, spring, systemd-analyze, yaml, zookeeper
#	                     or a command of the package of its name
#	build [VARIABLE=...] make and make install with these variables
#	start_server         a throw-away server, with the lines of SETTINGS in its
#	                     configuration; PGHOST, PGUSER... point at it
#
# Apart from packages that are missing, nothing is written outside of $WORK, a
# temporary folder that goes away with the script (KEEP=1 keeps it). PostgreSQL
# finds its files relative to its programs: the private prefix, $WORK/prefix,
# has copies of the programs and links to the rest, so that `make install` goes
# there, needs no privileges and leaves the system's PostgreSQL alone.
#
# The server refuses to run as root: root's work is then done as nobody.
#
#	say WHAT             what is being done, where nothing else would be heard
#	keep_logs FILE...    copies them to where they outlive $WORK: sets KEPT
#
# Environment of all these:
#	PG_CONFIG            the PostgreSQL. Without it: the newest supported one
#	                     that is installed, else the newest that the
#	                     distribution offers
#	NO_INSTALL=1         install nothing: say what is missing, and end
#	KEEP=1               keep $WORK
#	LE_TEST_TIMEOUT      how many seconds a test waits for anything (300). It is
#	                     the one limit of all waits: a test that waits in vain
#	                     fails then, and no test fails before
#	LE_TEST_SLOWNESS     how slow the machine is said to be, from 1 to 5, for
#	                     tests that ask; without it they measure (MachineTime.pm)

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SUPPORTED='19 18 17 16 15'
# The exceptions are what PostgreSQL's own headers and calling conventions need.
WARNINGS='-Wall -Wextra -Werror -Wno-unused-parameter -Wno-sign-compare'
WARNINGS+=' -Wno-missing-field-initializers -Wno-cast-function-type'
# For PGXS it means that `make install` does nothing: our make does not see it.
case ${NO_INSTALL:-0} in
	0) MAY_INSTALL=1 ;;
	*) MAY_INSTALL=0 ;;
esac
unset NO_INSTALL
SETTINGS=()
WORK=
JOB=
KEPT=

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

say() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# Gives the limit of waits to those who have a name of their own for it:
# PostgreSQL::Test, isolationtester (of 15, and of later versions), pg_ctl.
limit_waits() {
	export LE_TEST_TIMEOUT=${LE_TEST_TIMEOUT:-300}
	export PG_TEST_TIMEOUT_DEFAULT=$LE_TEST_TIMEOUT
	export PGISOLATIONTIMEOUT=$LE_TEST_TIMEOUT PGCTLTIMEOUT=$LE_TEST_TIMEOUT
}

# --- the temporary folder, and its end

make_work() {
	# make cannot build there, and PATH cannot name it.
	[[ ! ${TMPDIR:-/tmp} =~ [[:space:]:] ]] ||
		die "TMPDIR is '$TMPDIR': set it to a folder without blanks and colons"
	trap clean_up EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM

	WORK=$(mktemp -d "${TMPDIR:-/tmp}/leader_election.XXXXXX")
	AS_USER=(env HOME="$WORK" TMPDIR="$WORK")
	if [ "$(id -u)" -eq 0 ]; then
		chown nobody "$WORK"
		AS_USER=(
			setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups
			"${AS_USER[@]}"
		)
	fi
}

as_user() {
	"${AS_USER[@]}" "$@"
}

# Runs a command in a process group of its own, so that a signal to this
# script is answered at once and ends the whole group.
job() {
	local status=0

	set -m
	"$@" </dev/null &
	set +m
	JOB=$!
	wait "$JOB" || status=$?
	JOB=
	return "$status"
}

clean_up() {
	trap '' HUP INT TERM
	if [ -n "$JOB" ]; then
		kill -TERM -- "-$JOB" 2>/dev/null || :
		wait "$JOB" 2>/dev/null || :
	fi
	[ -n "$WORK" ] || return 0
	stop_servers
	if [ "${KEEP:-0}" = 1 ]; then
		printf '%s: kept %s\n' "${0##*/}" "$WORK" >&2
	else
		rm -rf "$WORK"
	fi
}

# Copies files and folders, as far as they can be, into $WORK-logs.
keep_logs() {
	local file

	KEPT=$WORK-logs
	mkdir -p "$KEPT"
	for file in "$@"; do
		[ ! -e "$file" ] || cp -RL "$file" "$KEPT" || :
	done
}

# Ends every server whose data is in $WORK: ours, and what tests left behind.
# A server's working directory is its data directory, until it is gone.
stop_servers() {
	local file pid i

	while IFS= read -r file; do
		pid=$(head -n 1 "$file" 2>/dev/null) || continue
		for ((i = 0; i < 200; i++)); do
			[ "$(readlink "/proc/$pid/cwd")" = "${file%/*}" ] || break
			[ "$i" -gt 0 ] || kill -QUIT "$pid"
			sleep 0.05
		done
	done < <(find "$WORK" -name postmaster.pid 2>/dev/null)
}

# --- packages

# Runs as root, with the packages as arguments. The system gets no cluster and
# no running service from us: createcluster.conf and policy-rc.d say so while
# packages are being installed. Nor is a service that they bring started with
# the system later. What was there before goes on as it was, and is restarted
# when its package is upgraded.
#
# Whatever ends this script, both files are restored; if it was killed, by the
# next one.
# shellcheck disable=SC2016
INSTALL_SCRIPT='
	set -eu
	export DEBIAN_FRONTEND=noninteractive
	conf=/etc/postgresql-common/createcluster.conf
	policy=/usr/sbin/policy-rc.d
	services=/run/leader_election.services
	install() { apt-get install -qq -y --no-install-recommends "$@" 9<&-; }
	is_new() {
		grep -qxF -e "$1" -e "$1.service" $services
		test $? -eq 1
	}
	restore() {
		if grep -qsF $services $policy; then rm $policy; fi
		for file in $policy $conf; do
			test ! -e $file.saved || mv $file.saved $file
		done
		rm -f $services $services.new
	}
	finish() {
		trap "" HUP INT TERM
		for file in /etc/init.d/* /etc/systemd/system/*.wants/*; do
			name=${file##*/}
			if test -e "$file" && is_new "$name"; then
				case $file in
					/etc/init.d/*) update-rc.d "$name" disable || : ;;
					*) rm "$file" ;;
				esac
				echo "service left disabled: $name"
			fi
		done
		restore
	}

	exec 9</usr/sbin
	flock 9
	restore
	for dir in /etc/init.d /lib/systemd/system /etc/systemd/system \
		/etc/systemd/system/*.wants; do
		test ! -d $dir || ls $dir
	done >$services.new
	mv $services.new $services
	trap finish EXIT
	trap "exit 1" HUP INT TERM
	test ! -e $policy || mv $policy $policy.saved
	cat >$policy <<-END
		#!/bin/sh
		# Made by leader_election, whose tests are having packages installed
		for service; do
			case \$service in -*) ;; *) break ;; esac
		done
		grep -qxF -e "\$service" -e "\$service.service" $services
		test \$? -ne 1 || exit 101
		test ! -x $policy.saved || exec $policy.saved "\$@"
	END
	chmod +x $policy
	case " $*" in
		*" postgresql-"*)
			test -e $conf || install postgresql-common
			cp -p $conf $conf.saved
			echo "create_main_cluster = false" >>$conf
			;;
	esac
	install "$@"
'

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	else
		sudo -n "$@"
	fi
}

may_install() {
	[ "$MAY_INSTALL" = 1 ] || return
	[ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null
}

# The major version of the newest PostgreSQL among Debian's packages, which has
# to be a supported one.
newest_packaged() {
	local v updated

	for updated in no yes; do
		for v in $SUPPORTED; do
			if [ -x "/usr/lib/postgresql/$v/bin/postgres" ]; then
				echo "$v"
				return
			fi
		done
		for v in $SUPPORTED; do
			if apt-cache show "postgresql-server-dev-$v" >/dev/null 2>&1; then
				echo "$v"
				return
			fi
		done
		if [ "$updated" = yes ] || ! may_install; then
			break
		fi
		as_root apt-get -qq update >/dev/null 2>&1 || break
	done
	die "apt-get knows no PostgreSQL of $SUPPORTED; set PG_CONFIG, or run as" \
		'root: apt-get update'
}

# Sets BINDIR, and DEBIAN to the major version if the server is a package.
choose_server() {
	local v config

	DEBIAN=
	if [ -n "${PG_CONFIG:-}" ]; then
		config=$(command -v "$PG_CONFIG") || die "PG_CONFIG: no $PG_CONFIG"
		BINDIR=$("$config" --bindir)
	elif ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null &&
		BINDIR=$(pg_config --bindir 2>/dev/null) &&
		[ -x "$BINDIR/postgres" ]; then
		:
	else
		v=$(newest_packaged)
		BINDIR=/usr/lib/postgresql/$v/bin
	fi
	if [[ $BINDIR =~ ^/usr/lib/postgresql/([0-9]+)/bin$ ]]; then
		DEBIAN=${BASH_REMATCH[1]}
	fi
}

# Prints the packages that are missing for the server and for the tools.
missing_packages() {
	if ! command -v make >/dev/null || ! command -v cc >/dev/null ||
		[ ! -e /usr/include/stdio.h ]; then
		echo build-essential
	fi
	if [ -n "$DEBIAN" ]; then
		[ -x "$BINDIR/postgres" ] || echo "postgresql-$DEBIAN"
		[ -e "$("$BINDIR/pg_config" --includedir-server 2>/dev/null)/postgres.h" ] ||
			echo "postgresql-server-dev-$DEBIAN"
	fi
	missing_tools "$@"
}

missing_tools() {
	local tool v

	for tool in "$@"; do
		case $tool in
			asyncpg)
				/usr/bin/python3 -c 'import asyncpg' 2>/dev/null ||
					echo python3-asyncpg
				;;
			cargo)
				[ -x /usr/bin/cargo ] || echo cargo
				;;
			debhelper)
				command -v dh >/dev/null || echo debhelper
				;;
			etcd-server)
				command -v etcd >/dev/null || echo etcd-server
				;;
			gnuplot-nox)
				command -v gnuplot >/dev/null || echo gnuplot-nox
				;;
			golang-github-jackc-pgx-v4-dev)
				[ -e /usr/share/gocode/src/github.com/jackc/pgx ] || echo "$tool"
				;;
			golang-github-lib-pq-dev)
				[ -e /usr/share/gocode/src/github.com/lib/pq ] || echo "$tool"
				;;
			golang-go)
				command -v go >/dev/null || echo golang-go
				;;
			iproute2)
				command -v ip >/dev/null || echo iproute2
				;;
			ipc-run)
				perl -MIPC::Run -e 1 2>/dev/null || echo libipc-run-perl
				;;
			jdbc)
				[ -e /usr/share/java/postgresql.jar ] ||
					echo libpostgresql-jdbc-java
				;;
			jdk)
				command -v javac >/dev/null || echo default-jdk-headless
				;;
			librust-tokio-postgres-dev)
				compgen -G '/usr/share/cargo/registry/tokio-postgres-*' >/dev/null ||
					echo "$tool"
				;;
			man)
				command -v man >/dev/null || echo man-db
				;;
			maven)
				# Not the programs alone: what a build offline needs.
				[ -e /usr/share/maven-repo/org/apache/maven/plugins/maven-jar-plugin ] &&
					[ -e /usr/share/maven-repo/org/apache/maven/surefire ] ||
					printf '%s\n' maven libmaven-{compiler,jar,resources}-plugin-java \
						libsurefire-java
				;;
			microhttpd)
				[ -e /usr/include/microhttpd.h ] || echo libmicrohttpd-dev
				;;
			node-cron)
				command -v npm >/dev/null || echo npm
				;;
			nodejs)
				command -v node >/dev/null || echo nodejs
				;;
			pg)
				# Debian's node-pg wants Debian's node: with another one, which
				# brings npm, install_npm gets it.
				command -v npm >/dev/null || [ -e /usr/share/nodejs/pg ] ||
					echo node-pg
				;;
			pdftotext)
				command -v pdftotext >/dev/null || echo poppler-utils
				;;
			pip)
				/usr/bin/python3 -c 'import setuptools, ensurepip, pip, wheel' \
					2>/dev/null || printf '%s\n' python3-{pip,setuptools,venv,wheel}
				;;
			procps)
				command -v pgrep >/dev/null || echo procps
				;;
			pg_buildext)
				[ -e /usr/share/perl5/Debian/Debhelper/Sequence/pgxs_loop.pm ] ||
					echo postgresql-server-dev-all
				;;
			pgbouncer)
				command -v pgbouncer >/dev/null ||
					[ -x /usr/sbin/pgbouncer ] || echo pgbouncer
				;;
			pgtap)
				command -v pg_prove >/dev/null ||
					echo libtap-parser-sourcehandler-pgtap-perl
				if [ -z "$(pgtap_files)" ]; then
					v=${DEBIAN:-$(newest_packaged)} || exit
					echo "postgresql-$v-pgtap"
				fi
				;;
			php)
				command -v php >/dev/null || echo php-cli
				;;
			python3-etcd)
				/usr/bin/python3 -c 'import etcd' 2>/dev/null || echo "$tool"
				;;
			php-pgsql)
				php -r 'exit(extension_loaded("pdo_pgsql") ? 0 : 1);' 2>/dev/null ||
					echo php-pgsql
				;;
			apscheduler | celery | django | fastapi | prometheus_client | psycopg | \
				psycopg2 | psycopg-pool | sqlalchemy | yaml)
				/usr/bin/python3 -c "import ${tool/-/_}" 2>/dev/null ||
					echo "python3-${tool/_/-}"
				;;
			systemd-analyze)
				command -v systemd-analyze >/dev/null || echo systemd
				;;
			ruby-pg)
				ruby -e 'require "pg"' 2>/dev/null || echo ruby-pg
				;;
			quartz)
				[ -e /usr/share/java/quartz2.jar ] || echo libquartz2-java
				;;
			spring)
				[ -e /usr/share/java/spring3-context.jar ] ||
					echo libspring-context-java
				[ -e /usr/share/java/spring3-jdbc.jar ] || echo libspring-jdbc-java
				[ -e /usr/share/java/HikariCP.jar ] || echo libhikaricp-java
				;;
			zookeeper)
				[ -e /usr/share/java/zookeeper.jar ] || echo zookeeper
				;;
			*)
				command -v "$tool" >/dev/null || echo "$tool"
				;;
		esac
	done
}

# pgTAP is pure SQL: the files of any version serve all versions.
pgtap_files() {
	local sharedir file

	sharedir=$("$BINDIR/pg_config" --sharedir 2>/dev/null) || sharedir=
	for file in "$sharedir" /usr/share/postgresql/*; do
		if [ -e "$file/extension/pgtap.control" ]; then
			printf '%s\n' "$file"/extension/pgtap*
			return
		fi
	done
}

# Packages of node, into $WORK/npm: its driver where npm is and Debian's package is
# not; and node-cron, which Debian does not have.
install_npm() {
	local -a wanted=()

	if [[ " $* " == *" pg "* ]] && [ ! -e /usr/share/nodejs/pg ] &&
		command -v npm >/dev/null; then
		wanted+=(pg)
	fi
	[[ " $* " != *" node-cron "* ]] || wanted+=(node-cron@4)
	[ ${#wanted[@]} -gt 0 ] || return 0
	as_user npm install --silent --no-audit --no-fund --prefix "$WORK/npm" \
		"${wanted[@]}" >"$WORK/npm.log" 2>&1 && return
	tail -n 30 "$WORK/npm.log" >&2
	die "npm could not install ${wanted[*]}"
}

install_packages() {
	local list
	local -a packages

	list=$(missing_packages "$@")
	[ -n "$list" ] || return 0
	mapfile -t packages <<<"$list"
	command -v apt-get >/dev/null || die "missing: ${packages[*]}"
	may_install || die "missing packages; as root, run:" \
		"apt-get install --no-install-recommends ${packages[*]}"

	say "installing, since they are missing (NO_INSTALL=1: not): ${packages[*]}"
	if ! { as_root apt-get -qq update ||
		echo 'apt-get update failed, using the lists as they are'; } \
		>"$WORK/apt.log" 2>&1 ||
		! as_root bash -c "$INSTALL_SCRIPT" install "${packages[@]}" \
			</dev/null >>"$WORK/apt.log" 2>&1; then
		tail -n 30 "$WORK/apt.log" >&2
		die "could not install ${packages[*]}"
	fi
	grep '^service left disabled' "$WORK/apt.log" >&2 || :
}

# --- the private prefix and the sources

# Makes $WORK/prefix/DIR look like DIR, with a link to it or, if it is there,
# to each of its entries. An installed leader_election is not taken over.
link_folder() {
	local dir=$1 to=$WORK/prefix$1 entry
	local -a entries=()

	# What a link shows may not have it: nothing is to be made in there.
	[ -e "$dir" ] || return 0
	if [ ! -e "$to" ]; then
		mkdir -p "${to%/*}"
		ln -s "$dir" "$to"
		return
	fi
	for entry in "$dir"/*; do
		case ${entry##*/} in
			leader_election* | pg_leader*) continue ;;
		esac
		[ -e "$to/${entry##*/}" ] || entries+=("$entry")
	done
	[ ${#entries[@]} -eq 0 ] || ln -s -t "$to" "${entries[@]}"
}

make_prefix() {
	local config=$BINDIR/pg_config prefix=$WORK/prefix pkglib share man dir file
	local -a rest

	[ -x "$BINDIR/postgres" ] || die "no server in $BINDIR"
	for file in "$("$config" --includedir-server)/postgres.h" \
		"$("$config" --pgxs)"; do
		[ -e "$file" ] || die "no PGXS for $config"
	done
	pkglib=$("$config" --pkglibdir)
	share=$("$config" --sharedir)
	man=$("$config" --mandir)
	mapfile -t rest < <("$config" --libdir --includedir --pkgincludedir \
		--includedir-server)

	mkdir -p "$prefix$BINDIR" "$prefix$pkglib" "$prefix$share/extension" \
		"$prefix$man/man1"
	cp -RL "$BINDIR/." "$prefix$BINDIR"
	for dir in "$share/extension" "$man/man1" "$man" "$share" "$pkglib" \
		"${rest[@]}"; do
		link_folder "$dir"
	done
	if [ ! -e "$prefix$share/extension/pgtap.control" ]; then
		pgtap_files | xargs -r ln -s -t "$prefix$share/extension"
	fi

	PATH=$prefix$BINDIR:$PATH
	export PG_CONFIG=$prefix$BINDIR/pg_config
	[ "$("$PG_CONFIG" --pkglibdir)" = "$prefix$pkglib" ] ||
		die "$BINDIR belongs to a PostgreSQL that cannot be relocated"
}

# The sources as they are now, without what git ignores.
copy_sources() {
	local file sources=$WORK/sources

	if ! git -C "$TOP" ls-files -z -co --exclude-standard >"$sources" \
		2>/dev/null; then
		(cd "$TOP" && find . -name .git -prune -o \
			! -name '*.o' ! -name '*.so' ! -name '*.bc' ! -path ./pg_leader \
			! -type d -print0) >"$sources"
	fi
	mkdir "$WORK/src"
	while IFS= read -rd '' file; do
		[ ! -e "$TOP/$file" ] || printf '%s\0' "$file"
	done <"$sources" | tar -C "$TOP" --null -T - -cf - |
		tar -C "$WORK/src" -xf -
}

set_up() {
	# Neither the caller's make nor its server is ours.
	unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
	unset PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGPASSWORD PGPASSFILE
	unset PGSERVICE PGSERVICEFILE PGOPTIONS PGAPPNAME PGDATA PGTZ PGDATESTYLE
	unset PGSSLMODE PGCLIENTENCODING PGCONNECT_TIMEOUT PGTARGETSESSIONATTRS
	# The libpq of 19's betas asks for protocol 3.9999, to see who does not answer
	# that it knows 3.0 only: pgbouncer 1.18 closes the connection.
	export PGMAXPROTOCOLVERSION=3.0
	export LC_ALL=C.UTF-8
	umask 022
	limit_waits

	make_work
	choose_server
	install_packages "$@"
	install_npm "$@"
	make_prefix
	copy_sources
	[ "$(id -u)" -ne 0 ] || chown -Rh nobody "$WORK"
	cd "$WORK/src" || exit
}

# --- building and running

run_make() {
	as_user make -s --no-print-directory PG_CONFIG="$PG_CONFIG" \
		with_llvm=no "$@"
}

build() {
	say 'building the extension and pg_leader (a minute)'
	if ! job run_make -j "$(nproc)" all "$@" >"$WORK/build.log" 2>&1 ||
		! job run_make install "$@" >>"$WORK/build.log" 2>&1; then
		cat "$WORK/build.log" >&2
		die 'the build failed'
	fi
}

start_server() {
	if ! as_user initdb -D "$WORK/data" -U postgres -A trust -E UTF8 \
		--no-locale -N >"$WORK/initdb.log" 2>&1; then
		cat "$WORK/initdb.log" >&2
		die 'initdb failed'
	fi
	cat >>"$WORK/data/postgresql.conf" <<-END
		listen_addresses = ''
		unix_socket_directories = '$WORK'
		max_connections = 300
		max_worker_processes = 16
		log_line_prefix = '%m [%p] %q%a '
	END
	printf '%s\n' "${SETTINGS[@]}" >>"$WORK/data/postgresql.conf"
	export PGHOST=$WORK PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
	if ! as_user pg_ctl -D "$WORK/data" -l "$WORK/server.log" -s -w start; then
		cat "$WORK/server.log" >&2
		die 'the server does not start'
	fi
}
