package leaderelection

import (
	"context"
	"time"
)

// NewSole makes one that always leads and asks nobody, no server and no health check:
// for laptops. It has no term: Term says none, the function of Run gets 0, and Fenced
// refuses, unless unfenced is true. After Resign it leads again at once.
func NewSole(opts Options, unfenced bool) *Leadership {
	opts.Wake, opts.HealthCheck = nil, nil
	l := newLeadership(opts)
	l.unfenced = unfenced
	l.rest = 0
	l.link = sole{l}
	return l
}

// sole is a link without a server: it grants a lease without end to each caller.
type sole struct{ l *Leadership }

func (s sole) stand(context.Context) (grant, error) {
	return grant{deadline: time.Now().Add(1 << 62)}, nil
}
func (s sole) renew(int64) (grant, error) { return s.stand(s.l.ctx) }
func (s sole) leave(int64)                {}
func (s sole) idle(ctx context.Context, d time.Duration) {
	sleepFor(ctx, d, nil)
}
func (s sole) wake() {}

// A Fake is a Leadership that a test moves, also in time.
type Fake struct {
	*Leadership
	clock  time.Time
	grants chan grant
}

// NewFake makes one. Hand its Leadership to what is tested, which calls Run.
func NewFake(opts Options) *Fake {
	f := &Fake{newLeadership(opts), time.Now(), make(chan grant)}
	f.unfenced = true
	f.now = func() time.Time { return f.clock }
	f.rest = 0
	f.link = stage{f}
	return f
}

// Elect has it elected for a lease, and returns the term. 0: the next term, 15 s. It
// waits until Run was called, and until the function of the last term has returned; if
// that one still leads, it is lost first (failover).
func (f *Fake) Elect(term int64, lease time.Duration) int64 {
	<-f.begun
	f.lose("failover")
	f.mu.Lock()
	elected := f.elected
	g := grant{term: or(term, f.grant.term+1), deadline: f.clock.Add(or(lease, 15*time.Second))}
	f.mu.Unlock()
	select {
	case f.grants <- g:
		select {
		case <-elected:
		case <-f.done: // Run has ended meanwhile: nobody is told
		}
	case <-f.done:
	}
	return g.term
}

// Lose ends the leadership, if there is one.
func (f *Fake) Lose(reason string) { f.lose(reason) }

// AskYield asks the leader to go. In a term that was asked before it does nothing.
// It is not to be called while Elect is under way.
func (f *Fake) AskYield() {
	f.mu.Lock()
	g := f.grant
	f.mu.Unlock()
	g.yielding = true
	f.extend(g)
}

// Advance moves the clock on. A lease that is over then is lost (expired).
func (f *Fake) Advance(d time.Duration) {
	f.mu.Lock()
	f.clock = f.clock.Add(d)
	f.mu.Unlock()
	f.lose("expired")
}

// stage is a Fake's link: only its test decides.
type stage struct{ f *Fake }

func (s stage) stand(ctx context.Context) (grant, error) {
	select {
	case g := <-s.f.grants:
		return g, nil
	case <-ctx.Done():
		return grant{}, errNotGranted
	}
}

func (s stage) renew(int64) (grant, error)                { return grant{}, errNotGranted }
func (s stage) leave(int64)                               {}
func (s stage) idle(ctx context.Context, _ time.Duration) { <-ctx.Done() }
func (s stage) wake()                                     {}
