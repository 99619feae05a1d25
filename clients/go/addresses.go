package leaderelection

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/lib/pq"
)

// Addresses are where a session connects to: for each host of the connection strings,
// each address that its name has now. They are tried in rounds.
type addresses struct {
	lines    string
	hosts    []host             // of the lines
	round    []address          // of this round, in the order in which they are tried
	tried    int                // how many of them were
	first    string             // where the primary was last: a round begins there
	refusals map[string]refusal // by address, if the last login there was refused
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
	since time.Time // the first refusal of an unbroken row
	err   error     // the last one
}

// next is the next address to try. After the last one of a round a new round begins: it
// looks up the names, no longer than ctx allows.
func (a *addresses) next(ctx context.Context) (address, error) {
	if a.hosts == nil {
		hosts, err := readHosts(a.lines)
		if err != nil {
			return address{}, finalError("22023", "%v", err)
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

// lookUp begins a round.
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
			a.refusals = map[string]refusal{} // an outage came in between: they are counted anew
		}
		for _, ip := range found {
			a.add(address{h.connector, "tcp", net.JoinHostPort(ip, h.port)})
		}
	}
}

// add adds an address to the round: in front, if the primary was there last.
func (a *addresses) add(at address) {
	a.round = append(a.round, at)
	if at.where == a.first {
		copy(a.round[1:], a.round)
		a.round[0] = at
	}
}

// prefer notes that the primary is there: this round is over, and the next one begins
// with it.
func (a *addresses) prefer(at address) {
	a.first, a.tried = at.where, len(a.round)
}

// heard notes what came of a login: a refusal; or that the address refuses us no more, as it
// let us in, or was not reached.
func (a *addresses) heard(at address, err error) {
	if !refusing.MatchString(sqlState(err)) {
		delete(a.refusals, at.where)
		return
	}
	since := time.Now()
	if known, ok := a.refusals[at.where]; ok {
		since = known.since
	}
	a.refusals[at.where] = refusal{since, err}
}

// verdict is a refusal, if all addresses of the round have refused for so long; else nil.
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

// readHosts makes the list of hosts of connection strings, with a connector of lib/pq for
// each. lib/pq looks up nothing: the socket dials our address for it. Numbers are what
// hostaddr says.
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

// take takes a list, with commas, out of the settings, or else from the environment.
func take(settings map[string]string, name, variable string) []string {
	value, ok := settings[name]
	if !ok {
		value = environment(variable)
	}
	delete(settings, name)
	return strings.Split(value, ",")
}
