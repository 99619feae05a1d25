# shellcheck shell=bash
#
# What has to be compiled of the drivers, for run and ../patroni/run:
#
#	compile_clients FOLDER SUBJECT...

compile_clients() {
	local folder=$1 libdir

	libdir=$("$PG_CONFIG" --libdir)
	as_user cc -O2 -Wall -Wextra -Wno-unused-parameter \
		-o "$folder/worker" test/clients/worker.c \
		-I"$("$PG_CONFIG" --includedir)" \
		-L"$libdir" -Wl,-rpath,"$libdir" -lpq
	if [[ " $* " == *" java "* ]]; then
		as_user mkdir "$folder/java"
		as_user javac -cp /usr/share/java/postgresql.jar -d "$folder/java" \
			clients/java/src/main/java/leaderelection/*.java \
			test/clients/drivers/*.java
	fi
	# Debian's packages of Go are made for the times before modules.
	if [[ " $* " == *" go "* ]]; then
		as_user mkdir -p "$folder/gopath/src/driver"
		as_user ln -s "$WORK/src/clients/go" "$folder/gopath/src/leader-election-postgresql"
		as_user cp test/clients/drivers/go/*.go "$folder/gopath/src/driver"
		as_user env GO111MODULE=off GOFLAGS= GOCACHE="$folder/gocache" \
			GOPATH="$folder/gopath:/usr/share/gocode" \
			go build -o "$folder/go-driver" driver
	fi
}
