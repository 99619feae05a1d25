# shellcheck shell=bash
#
# The programs of the chaos run, for run, ../day/run and ../patroni/run:
#
#	compile_candidate FOLDER    who stands, in C
#	compile_others FOLDER       who watches, the network, and the wall clocks
#	compile_languages FOLDER    who stands, in Java and Go (drivers)

# compile_one PROGRAM SOURCE...
compile_one() {
	local program=$1 libdir

	shift
	libdir=$("$PG_CONFIG" --libdir)
	as_user cc -O2 -Wall -Wextra -Wno-unused-parameter -o "$program" "$@" \
		-I"$("$PG_CONFIG" --includedir)" \
		-L"$libdir" -Wl,-rpath,"$libdir" -lpq
}

compile_candidate() {
	local -a candidate=(candidate connection leader session detached command
		listener pressure timeouts log)

	candidate=("${candidate[@]/#/test/chaos/}")
	compile_one "$1/candidate" "${candidate[@]/%/.c}"
}

compile_others() {
	compile_one "$1/watcher" test/chaos/watcher.c test/chaos/log.c test/chaos/timeouts.c
	compile_one "$1/proxy" test/chaos/proxy.c
	as_user cc -O2 -Wall -Wextra -shared -fPIC -o "$1/clock.so" test/t/clock.c
}

compile_languages() {
	as_user mkdir "$1/java"
	as_user javac -cp /usr/share/java/postgresql.jar -d "$1/java" \
		clients/java/src/main/java/leaderelection/*.java test/chaos/drivers/Many.java
	# Debian's packages of Go are made for the times before modules.
	as_user mkdir -p "$1/gopath/src/many"
	as_user ln -s "$WORK/src/clients/go" "$1/gopath/src/leader-election-postgresql"
	as_user cp test/chaos/drivers/go/*.go "$1/gopath/src/many"
	as_user env GO111MODULE=off GOFLAGS= GOCACHE="$1/gocache" \
		GOPATH="$1/gopath:/usr/share/gocode" go build -o "$1/many" many
	rm -rf "$1/gocache"
}
