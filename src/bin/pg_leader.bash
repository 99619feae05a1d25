# shellcheck shell=bash
#
# Completion of pg_leader in bash: subcommands, options, modes, the names of
# elections, groups and candidates, and the command of run.
#
# What --help says is offered. Names come from the server of the connection
# options that are already there, else of the environment; if that does not
# answer at once, none is offered. Nothing of the command line is evaluated.

# Splits the line before the cursor as the shell will: $words, without quotes and
# backslashes, and $raw, the last word as it was typed. (COMP_WORDS is split at
# "=" and ":", too.) Fails if the shell would expand something, or if a quote is
# open.
_pg_leader_split() {
	local line=${COMP_LINE:0:COMP_POINT} quote='' word='' start=-1 i c

	words=()
	for ((i = 0; i < ${#line}; i++)); do
		c=${line:i:1}
		if [[ -z $quote && $c == [[:blank:]] ]]; then
			((start < 0)) || words+=("$word")
			word=''
			start=-1
			continue
		fi
		((start >= 0)) || start=$i
		case $quote$c in
			\'\' | \"\") quote='' ;;
			\' | \") quote=$c ;;
			\$ | \` | \"\$ | \"\`) return 1 ;;
			\\ | \"\\)
				((++i))
				word+=${line:i:1}
				;;
			*) word+=$c ;;
		esac
	done
	words+=("$word")
	raw=''
	((start < 0)) || raw=${line:start}
	[ -z "$quote" ]
}

# Offers the lines of input that go on from $2; $1 is before that in the word.
# bash replaces only what is after the last "=", ":" or "@" of the word.
_pg_leader_offer() {
	local before=$1 begin=$2 typed='' line

	[[ $raw != *[=:@]* ]] || typed=${raw%"${raw##*[=:@]}"}
	while IFS= read -r line; do
		[[ -n $line && $line == "$begin"* ]] || continue
		# The "=" of an option is none of a name.
		[[ $line == --*= ]] || line=$(printf %q "$line")
		line=$before$line
		[[ $line != "$typed"* ]] || COMPREPLY+=("${line#"$typed"}")
	done
}

# What pg_leader status says about elections: JSON, a line each.
_pg_leader_ask() {
	local -a limit=()

	! type -P timeout >/dev/null || limit=(timeout 5)
	PGCONNECT_TIMEOUT=${PGCONNECT_TIMEOUT:-2} "${limit[@]}" \
		"$program" status --json -w "${connection[@]}" "$@" </dev/null 2>/dev/null
}

# The names in JSON after the pattern $1, a line each, but for those that have
# something to be escaped.
_pg_leader_names() {
	grep -oE "$1\"[^\"\\]+\"" | sed -E 's/.*"([^"]+)"$/\1/' | sort -u
}

# Offers values for $option.
_pg_leader_values() {
	case $option in
		-e | --election)
			_pg_leader_ask | _pg_leader_names '^\{"election": ?'
			;;
		--group)
			_pg_leader_ask | _pg_leader_names '^\{"election": ?' |
				sed -nE 's,/[0-9]+$,,p' | sort -u
			;;
		-n | --candidate | --to)
			[ -z "$election" ] || _pg_leader_ask -e "$election" |
				_pg_leader_names '"candidate": ?'
			;;
		--mode) printf '%s\n' detached session ;;
		--pooler) echo session ;;
		--check | --exec) compgen -c -- "$1" | sort -u ;;
		--html) compgen -f -- "$1" ;;
		-h | --host) compgen -A hostname -- "$1" ;;
		-U | --username) compgen -u -- "$1" ;;
	esac
}

# Reads the words before the last one: $connection and $election; $option is the
# option whose value the last word is, $command the place of the command of run.
_pg_leader_read() {
	local i word value last=$((${#words[@]} - 1))

	for ((i = 2; i < last; i++)); do
		word=${words[i]}
		case $word in
			--)
				command=$((i + 1))
				return
				;;
			--portable)
				connection+=("$word")
				continue
				;;
			--*=*)
				value=${word#*=}
				word=${word%%=*}
				;;
			-*)
				# A letter's value may follow at once.
				value=${word:2}
				[[ $word == --* ]] || word=${word:0:2}
				grep -qE -e "(^|, )$word(=|, .*=)" <<<"$options" \
					2>/dev/null || continue
				if [[ $word == --* || -z $value ]]; then
					option=$word
					((++i < last)) || return
					value=${words[i]}
				fi
				;;
			*)
				command=$i
				return
				;;
		esac
		option=''
		case $word in
			-d | -h | -p | -U) connection+=("$word" "$value") ;;
			--dbname | --host | --port | --username)
				connection+=("$word=$value")
				;;
			-e | --election) election=$value ;;
		esac
	done
}

_pg_leader() {
	local program=${1/#\~\//"$HOME"/} raw options option='' election='' last
	local command=-1
	local -a words connection=()

	COMPREPLY=()
	_pg_leader_split || return 0
	last=$((${#words[@]} - 1))
	if ((last == 1)); then
		_pg_leader_offer '' "${words[1]}" < <(
			"$program" --help </dev/null 2>/dev/null | sed -nE \
				-e '/^Subc/,/^$/s/^  ([a-z]+) .*/\1/p' -e 's/^  -., (--[a-z]+).*/\1/p'
		)
		return 0
	fi

	# "-e, --election=", "--rank=", "--skip"
	options=$("$program" "${words[1]}" --help </dev/null 2>/dev/null |
		sed -nE 's/^ {2,6}((-., )?--[a-z-]+=?)([A-Z]+)?( {2,}.*)?$/\1/p')
	_pg_leader_read

	if ((command >= 0)); then
		[ "${words[1]}" = run ] || return 0
		compopt -o default 2>/dev/null
		((command < last)) || mapfile -t COMPREPLY < <(compgen -c -- "$raw")
	elif [ -n "$option" ]; then
		_pg_leader_offer '' "${words[last]}" < <(_pg_leader_values "${words[last]}")
	elif [[ ${words[last]} == --*=* ]]; then
		option=${words[last]%%=*}
		_pg_leader_offer "$option=" "${words[last]#*=}" \
			< <(_pg_leader_values "${words[last]#*=}")
	elif [[ ${words[last]} == -* ]]; then
		_pg_leader_offer '' "${words[last]}" < <(
			sed -E 's/.*(--)/\1/' <<<"$options"
			echo --help
		)
		[[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace 2>/dev/null
	elif [ "${words[1]}" = run ]; then
		compopt -o default 2>/dev/null
		mapfile -t COMPREPLY < <(compgen -c -- "$raw")
	fi
	return 0
}

complete -F _pg_leader pg_leader
