# shellcheck shell=bash
#
# The candidate of the chaos run, for run and ../patroni/run:
#
#	compile_candidate FOLDER

compile_candidate() {
	local libdir
	local -a candidate=(candidate connection leader session detached command
		listener pressure timeouts log)

	candidate=("${candidate[@]/#/test/chaos/}")
	libdir=$("$PG_CONFIG" --libdir)
	as_user cc -O2 -Wall -Wextra -Wno-unused-parameter \
		-o "$1/candidate" "${candidate[@]/%/.c}" \
		-I"$("$PG_CONFIG" --includedir)" \
		-L"$libdir" -Wl,-rpath,"$libdir" -lpq
}
