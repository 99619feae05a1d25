package leaderelection

import (
	"context"
	"fmt"
	"net"
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
