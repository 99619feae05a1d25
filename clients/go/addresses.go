package leaderelection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/lib/pq"
)

// Addresses are where a session connects to. Each host of the connection strings,
// and each address that its name has now, is one. They are tried in rounds.
type addresses struct {
	lines    string
	hosts    []host             // of the lines
	round    []address          // of this round
	tried    int                // how many of them
	first    string             // where the primary was last
	refusals map[string]refusal // by address, if the last word there was one
}

type host struct {
	connector  *pq.Connector
	name, port string // name: what is looked up, unless it is a folder
}

type address struct {
	connector      *pq.Connector
	network, where string
}

type refusal struct {
	since time.Time
	err   error
}

// next is the next address. ctx limits a look into the DNS, as a round begins.
func (a *addresses) next(ctx context.Context) (address, error) {
	if a.hosts == nil {
		hosts, err := readHosts(a.lines)
		if err != nil {
			return address{}, finally("22023", "%v", err)
		}
		a.hosts = hosts
	}
	if !a.more() {
		a.lookUp(ctx)
	}
	a.tried++
	return a.round[a.tried-1], nil
}

// more says whether this round goes on.
func (a *addresses) more() bool { return a.tried < len(a.round) }

func (a *addresses) lookUp(ctx context.Context) {
	a.round, a.tried = nil, 0
	for _, h := range a.hosts {
		if strings.HasPrefix(h.name, "/") {
			a.add(address{h.connector, "unix", h.name + "/.s.PGSQL." + h.port})
			continue
		}
		found, err := net.DefaultResolver.LookupHost(ctx, h.name)
		if err != nil { // dialling says why
			found = []string{h.name}
		}
		for _, ip := range found {
			a.add(address{h.connector, "tcp", net.JoinHostPort(ip, h.port)})
		}
	}
}

// add puts where the primary was last before all others.
func (a *addresses) add(at address) {
	a.round = append(a.round, at)
	if at.where == a.first {
		copy(a.round[1:], a.round)
		a.round[0] = at
	}
}

// prefer begins the next round with an address.
func (a *addresses) prefer(at address) {
	a.first, a.tried = at.where, len(a.round)
}

// heard notes what came of a login.
func (a *addresses) heard(at address, err error) {
	if refusing.MatchString(sqlState(err)) {
		a.refused(at, err)
	} else {
		a.answered(at)
	}
}

func (a *addresses) refused(at address, err error) {
	since := time.Now()
	if known, ok := a.refusals[at.where]; ok {
		since = known.since
	}
	a.refusals[at.where] = refusal{since, err}
}

// answered notes that an address refuses us no more: it let us in, or was not reached.
func (a *addresses) answered(at address) { delete(a.refusals, at.where) }

// verdict is the last refusal, if all addresses have refused for so long.
func (a *addresses) verdict(limit time.Duration) (err error) {
	for _, at := range a.round {
		refusal, ok := a.refusals[at.where]
		if !ok || time.Since(refusal.since) < limit {
			return nil
		}
		err = refusal.err
	}
	return err
}

// readHosts makes the list of hosts of connection strings: lib/pq is given one at a
// time, and dials what it is told.
func readHosts(lines string) (hosts []host, err error) {
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		settings, err := readSettings(line)
		if err != nil {
			return nil, err
		}
		names, ports := take(settings, "host", "PGHOST"), take(settings, "port", "PGPORT")
		numbers := take(settings, "hostaddr", "PGHOSTADDR")
		if len(numbers) == 1 && numbers[0] == "" {
			numbers = names
		} else if len(names) == 1 && names[0] == "" {
			names = numbers
		}
		if len(names) != len(numbers) || len(ports) != 1 && len(ports) != len(names) {
			return nil, fmt.Errorf("%d hosts, %d addresses and %d ports", len(names), len(numbers), len(ports))
		}
		for i := range names {
			settings["host"] = or(names[i], "localhost") // that TLS and the passwords' file know
			settings["port"] = or(ports[i%len(ports)], "5432")
			connector, err := newConnector(settings)
			if err != nil {
				return nil, err
			}
			hosts = append(hosts, host{connector, or(numbers[i], "localhost"), settings["port"]})
		}
	}
	return hosts, nil
}

// take takes a list out of the settings, or else from the environment.
func take(settings map[string]string, name, variable string) []string {
	value, ok := settings[name]
	if !ok {
		value = environment(variable)
	}
	delete(settings, name)
	return strings.Split(value, ",")
}

// What libpq knows and lib/pq does not, and what it may do without. All else that
// lib/pq does not know it sends to the server as a setting.
var (
	needless = regexp.MustCompile("^(keepalives.*|tcp_user_timeout|load_balance_hosts)$")
	unknown  = regexp.MustCompile("^(passfile|sslcrl|sslcrldir|channel_binding|gssencmode|require_auth|requirepeer)$")
)

// readSettings reads a connection string, and what its service says beside it.
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
			return nil, err
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

// cutHosts takes the hosts out of a URL: url.Parse knows URLs of one host only.
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

// readService reads the section of a service file: lib/pq does not.
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
// lib/pq panics if that has variables of libpq that it does not know.
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

// environment is what a variable says, or said before TakeEnvironment.
func environment(name string) string { return or(os.Getenv(name), taken[name]) }
