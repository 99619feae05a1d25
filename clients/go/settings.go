package leaderelection

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/lib/pq"
)

// Two kinds of parameters that libpq knows and lib/pq does not: those that can be left
// out, and those that cannot, which are an error. All others that lib/pq does not know
// it sends to the server as settings.
var (
	needless = regexp.MustCompile("^(keepalives.*|tcp_user_timeout|load_balance_hosts)$")
	unknown  = regexp.MustCompile("^(passfile|sslcrl|sslcrldir|channel_binding|gssencmode|require_auth|requirepeer)$")
)

// readSettings reads a connection string, and, for what it does not say, its service.
func readSettings(line string) (map[string]string, error) {
	given, err := parse(line)
	if err != nil {
		return nil, err
	}
	service, ok := given["service"]
	if !ok {
		service = environment("PGSERVICE")
	}
	settings := map[string]string{}
	if service != "" {
		if settings, err = readService(service); err != nil {
			return nil, err
		}
	}
	for key, value := range given {
		settings[key] = value
	}
	delete(settings, "service")
	switch settings["target_session_attrs"] {
	case "", "any", "read-write", "primary", "prefer-standby":
		delete(settings, "target_session_attrs") // only a primary will do
	default:
		return nil, errors.New("target_session_attrs: only a primary can grant a lease")
	}
	for key := range settings {
		if unknown.MatchString(key) {
			return nil, fmt.Errorf("lib/pq does not know %s", key)
		} else if needless.MatchString(key) {
			delete(settings, key)
		}
	}
	return settings, nil
}

var (
	setting = regexp.MustCompile(`^([^\s=]+)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*)?)(?:\s+|$)`)
	escaped = regexp.MustCompile(`\\(.)`)
)

// parse reads a connection string of either form.
func parse(line string) (map[string]string, error) {
	settings := map[string]string{}
	if strings.HasPrefix(line, "postgres://") || strings.HasPrefix(line, "postgresql://") {
		rest, hosts, ports := cutHosts(line)
		if hosts != "" {
			settings["host"], settings["port"] = hosts, ports
		}
		var err error
		if line, err = pq.ParseURL(rest); err != nil {
			return nil, errors.New("the connection string is not a valid URL") // err shows it, with a password
		}
	}
	for line = strings.TrimSpace(line); line != ""; {
		m := setting.FindStringSubmatch(line)
		if m == nil {
			return nil, errors.New("a connection string has words KEY=VALUE") // it may have a password: not shown
		}
		settings[m[1]] = escaped.ReplaceAllString(m[2]+m[3], "$1")
		line = line[len(m[0]):]
	}
	return settings, nil
}

// cutHosts takes hosts and ports out of a URL, as lists with commas: url.Parse, which
// lib/pq uses, knows URLs of one host only.
func cutHosts(url string) (rest, hosts, ports string) {
	begin := strings.Index(url, "://") + len("://")
	end := begin + strings.IndexAny(url[begin:]+"/", "/?")
	begin += strings.LastIndex(url[begin:end], "@") + 1
	var names, numbers []string
	for _, each := range strings.Split(url[begin:end], ",") {
		name, port, err := net.SplitHostPort(each)
		if err != nil { // it has no port
			name = strings.Trim(each, "[]")
		}
		names, numbers = append(names, name), append(numbers, port)
	}
	return url[:begin] + url[end:], strings.Join(names, ","), strings.Join(numbers, ",")
}

// readService reads a section of a service file, the user's or else the system's: lib/pq
// does not.
func readService(service string) (map[string]string, error) {
	home, _ := os.UserHomeDir()
	files := []string{or(environment("PGSERVICEFILE"), filepath.Join(home, ".pg_service.conf")),
		filepath.Join(or(environment("PGSYSCONFDIR"), "/etc/postgresql-common"), "pg_service.conf")}
	for _, file := range files {
		text, _ := os.ReadFile(file)
		settings, here := map[string]string{}, false
		for _, line := range strings.Split(string(text), "\n") {
			line = strings.TrimSpace(line)
			key, value, ok := strings.Cut(line, "=")
			switch {
			case line == "" || line[0] == '#':
			case line[0] == '[' && here:
				return settings, nil
			case line[0] == '[':
				here = line == "["+service+"]"
			case here && !ok:
				return nil, fmt.Errorf("%s: service %q: not KEY=VALUE", file, service)
			case here:
				settings[strings.TrimSpace(key)] = strings.TrimSpace(value)
			}
		}
		if here {
			return settings, nil
		}
	}
	return nil, fmt.Errorf("there is no service %q in %s", service, strings.Join(files, " nor in "))
}

// newConnector has lib/pq read settings, and the environment for what they do not say.
// lib/pq panics if the environment has variables of libpq that it does not know.
func newConnector(settings map[string]string) (connector *pq.Connector, err error) {
	defer func() {
		if complaint := recover(); complaint != nil {
			err = fmt.Errorf("lib/pq: %v in the environment: see TakeEnvironment", complaint)
		}
	}()
	dsn, quote := "", strings.NewReplacer(`\`, `\\`, `'`, `\'`)
	for key, value := range settings {
		dsn += key + "='" + quote.Replace(value) + "' "
	}
	return pq.NewConnector(dsn)
}

// taken is what TakeEnvironment has taken.
var taken = map[string]string{}

// TakeEnvironment takes PGSERVICE, PGSERVICEFILE, PGSYSCONFDIR and PGHOSTADDR out of the
// environment of the process, and keeps what they say for sessions of this package.
// lib/pq, which knows none of them, panics as long as they are there. Call it first in
// main: it changes what other goroutines and programs that are started later see.
func TakeEnvironment() {
	for _, name := range []string{"PGSERVICE", "PGSERVICEFILE", "PGSYSCONFDIR", "PGHOSTADDR"} {
		if value, ok := os.LookupEnv(name); ok {
			taken[name] = value
			os.Unsetenv(name)
		}
	}
}

// environment is what a variable says, or what it said when TakeEnvironment took it.
func environment(name string) string { return or(os.Getenv(name), taken[name]) }
