// The same question as check.pl's, asked with Porcupine
// (https://github.com/anishathalye/porcupine): is there an order of all calls that
// explains all answers? The model is a second one, written for its search: calls without
// an answer are operations that never return, each of which takes effect or does not.
//
//	go mod tidy; go run . HISTORY...
//
// It prints a line for each election or group. Exit code: 0 if all is linearizable.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	never    = int64(9e15)
	resetUs  = int64(50_000)
	maxSeats = 8
	patience = 300 * time.Second // for one election
)

// How a term is over
const (
	leads = iota
	ranOut
	givenUp
)

// A line of a history: a call, or its answer
type line struct {
	ID       int
	Op       string
	Client   string
	Object   string
	Seat     string
	Term     int64
	Run      *string
	Attempts int
	Old, New string
	Call     *int64

	Return *int64
	Sent   int64
	Rows   *[][]interface{}
	Value  *bool
	Failed *string
	Server string

	From  string // of a failover: the former server, which goes on beside the new one
	Until int64  // ... until then; 0: it does not

	Pooler string // which answers for the former server ...
	Moved  int64  // ... until it is moved, and its connections are reset

	Caps       map[string]int
	FencesWait int `json:"fences wait"`
}

type row struct {
	seat     int
	term, ms int64
}

// A call with its answer
type call struct {
	line
	seat    int
	rows    []row
	ret     int64
	unknown bool
	beside  bool // answered by a former server
	unheard bool // a grant may have been, of which nobody has heard
	cap     int
	waits   bool // fences keep the next leader out
}

func (c *call) yes() bool {
	if c.Rows != nil {
		return len(c.rows) > 0
	}
	return c.Value != nil && *c.Value
}

type seat struct {
	term           int64
	former         int64 // the old number, accepted after a failover until a renewal has named the new one
	formerTerm     int64 // the term at the former server
	over           int
	who            string
	lo, hi         int64 // the lease is over not before, and after
	foreign        bool  // another server goes on
	formerLo       int64 // the lease at the former server is over not before this
	formerHi       int64 // the lease at the former server is over after this
	value          string
	run, done, top string
	tries          int
}

type state struct {
	now   int64
	seats [maxSeats]seat
}

// The term of a seat has ended by the time that a call returns.
func (s *state) end(i int, until int64) bool {
	t := &s.seats[i]
	if t.over != leads {
		return true
	}
	if t.lo > s.now {
		s.now = t.lo
	}
	t.over = ranOut
	return s.now <= until
}

func (t *seat) isTerm(term int64) bool {
	return t.term == term || t.former == term && term != 0
}

// Is this the term that the former server knows, which goes on beside the new one?
func (t *seat) isFormer(term int64) bool {
	if t.foreign {
		return t.formerHi != 0 && t.term == term
	}
	return t.formerHi != 0 && t.formerTerm == term
}

func (s *state) grant(c *call) bool {
	isNew := map[int]bool{}
	for _, r := range c.rows {
		t := &s.seats[r.seat]
		if r.term <= t.term || !s.end(r.seat, c.ret) || t.formerLo > c.ret {
			return false
		}
		if t.formerLo > s.now { // until then nobody else is elected
			s.now = t.formerLo
		}
		t.run = ""
		if c.Run != nil {
			tries := 0
			if *c.Run == t.top {
				tries = t.tries
			}
			if *c.Run <= t.done || *c.Run < t.top || tries >= c.Attempts {
				return false
			}
			t.run, t.top, t.tries = *c.Run, *c.Run, tries+1
		}
		t.term, t.former, t.over, t.who, t.foreign = r.term, 0, leads, c.Client, false
		t.formerTerm, t.formerLo, t.formerHi = 0, 0, 0
		t.lo, t.hi = c.Sent+1000*r.ms, c.ret+1000*(r.ms+1)
		isNew[r.seat] = true
	}
	return c.cap == 0 || s.withinCap(c, isNew)
}

func (s *state) withinCap(c *call, isNew map[int]bool) bool {
	var had []int
	for i := range s.seats {
		if !isNew[i] && s.seats[i].over == leads && s.seats[i].who == c.Client {
			had = append(had, i)
		}
	}
	sort.Slice(had, func(a, b int) bool { return s.seats[had[a]].lo < s.seats[had[b]].lo })
	for len(isNew)+len(had) > c.cap {
		if len(had) == 0 || !s.end(had[0], c.ret) {
			return false
		}
		had = had[1:]
	}
	return true
}

func (s *state) renew(c *call) bool {
	t, r := &s.seats[c.seat], c.rows[0]
	if c.beside && r.term == c.Term && t.isFormer(c.Term) &&
		s.now <= t.formerHi && c.Sent+1000*r.ms <= t.formerHi {
		return true // a former server prolongs nothing
	}
	if !t.isTerm(c.Term) || t.over != leads || s.now > t.hi {
		return false
	}
	if t.foreign {
		if r.term <= t.term {
			return false
		}
		t.former, t.formerTerm, t.term, t.foreign, t.hi = c.Term, t.term, r.term, false, 0
	} else if r.term != t.term {
		return false
	} else if c.Term == t.term {
		t.former = 0
	}
	t.hi = c.ret + 1000*(r.ms+1)
	if lo := c.Sent + 1000*r.ms; lo > t.lo {
		t.lo = lo
	}
	return t.hi >= t.lo
}

// Does a fence let a transaction of this term commit?
func (s *state) fenced(c *call) bool {
	t := &s.seats[c.seat]
	if t.term != c.Term || t.foreign || t.value != c.Old {
		return false
	}
	if c.waits {
		return t.over != givenUp
	}
	return t.over == leads && s.now <= t.hi
}

func (s *state) refused(c *call) bool {
	t := &s.seats[c.seat]
	keeps := c.Op == "renew" || strings.HasPrefix(c.Op, "release")
	if c.Term > t.term {
		return false
	}
	if c.Op == "release done" && t.isTerm(c.Term) && t.run != "" {
		return c.unheard && s.end(c.seat, c.ret)
	}
	if c.Term < t.term && !(keeps && t.isTerm(c.Term) && t.over == leads) {
		return true
	}
	if t.foreign && !keeps {
		return true
	}
	return s.end(c.seat, c.ret)
}

// Takes a call's effect; false: its answer contradicts the state.
func (s *state) apply(c *call) bool {
	if *c.Call > s.now {
		s.now = *c.Call
	}
	if s.now > c.ret {
		return false
	}
	switch {
	case c.Op == "failover":
		for i := range s.seats {
			t := &s.seats[i]
			if t.foreign || t.over != leads {
				t.formerHi = 0
			} else {
				t.formerHi = t.hi
				if t.lo > t.formerLo {
					t.formerLo = t.lo
				}
			}
			if t.over != givenUp {
				t.over, t.foreign, t.hi = leads, true, never
			}
		}
		return true
	case c.Op == "acquire":
		return s.grant(c)
	case !c.yes():
		return s.refused(c)
	}
	t := &s.seats[c.seat]
	switch c.Op {
	case "renew":
		return s.renew(c)
	case "release done":
		if !t.isTerm(c.Term) || t.run == "" { // a term for no run has none
			return false
		}
		if t.run > t.done {
			t.done = t.run
		}
		if t.over == leads && !t.foreign { // in the grace it ends nothing
			t.over = givenUp
		}
		return true
	case "read":
		return s.fenced(c)
	case "write":
		if !s.fenced(c) {
			return false
		}
		t.value = c.New
		return true
	}
	if c.beside && c.Op != "release" && t.isFormer(c.Term) {
		return s.now <= t.formerHi
	}
	if !t.isTerm(c.Term) || t.over != leads || s.now > t.hi {
		return false
	}
	if c.Op == "release" {
		t.over = givenUp
		return true
	}
	return !t.foreign && t.term == c.Term // is_leader, assert
}

// What a call without an answer may do: nothing, or
func (s state) applyUnknown(c *call) []interface{} {
	states := []interface{}{s}
	if *c.Call > s.now {
		s.now = *c.Call
	}
	t := &s.seats[c.seat]
	switch {
	case c.Op == "renew" && t.isTerm(c.Term) && t.over == leads && s.now <= t.hi:
		t.hi = never
		if !t.foreign && c.Term == t.term {
			t.former = 0
		}
	case strings.HasPrefix(c.Op, "release") && t.isTerm(c.Term) && t.over == leads:
		if c.Op == "release done" && t.run > t.done {
			t.done = t.run
		}
		t.over = givenUp
	case c.Op == "write" && s.fenced(c):
		t.value = c.New
	default:
		return states
	}
	return append(states, s)
}

var model = porcupine.NondeterministicModel{
	Init: func() []interface{} {
		var s state
		for i := range s.seats {
			s.seats[i].over = givenUp
		}
		return []interface{}{s}
	},
	Step: func(before, input, _ interface{}) []interface{} {
		s, c := before.(state), input.(*call)
		if c.unknown {
			return s.applyUnknown(c)
		}
		var states []interface{}
		if t := s.seats[c.seat]; c.Op == "renew" && c.yes() && !t.foreign && c.Sent+1000*c.rows[0].ms <= t.hi {
			kept := s // the extension keeps the old number, if the leader is asked to yield
			if kept.apply(c) {
				kept.seats[c.seat].former = t.former
				states = append(states, kept)
			}
		}
		if c.Op == "release done" && c.yes() { // the lease may have run out before
			ended := s
			if ended.end(c.seat, c.ret) && ended.apply(c) {
				states = append(states, ended)
			}
		}
		if s.apply(c) {
			states = append(states, s)
		}
		return states
	},
	Equal: func(a, b interface{}) bool { return a.(state) == b.(state) },
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

func read(paths []string) (map[string][]*call, line) {
	objects, settings := map[string][]*call{}, line{}
	for _, path := range paths {
		file, err := os.Open(path)
		fail(err)
		calls := map[int]*call{}
		reader := bufio.NewReader(file)
		for {
			text, err := reader.ReadBytes('\n')
			if err != nil { // a line that was not ended is none
				break
			}
			var l line
			fail(json.Unmarshal(text, &l))
			switch {
			case l.Caps != nil:
				settings = l
			case l.Call != nil:
				c := &call{line: l}
				calls[l.ID] = c
				objects[l.Object] = append(objects[l.Object], c)
			default:
				c := calls[l.ID]
				c.Return, c.Sent, c.Rows, c.Value, c.Failed, c.Server = l.Return, l.Sent, l.Rows, l.Value, l.Failed, l.Server
			}
		}
		file.Close()
	}
	return objects, settings
}

// Whether a term is over is in doubt while a renewal is under way, and the lease of
// before may be over.
func inDoubt(c *call, calls []*call) bool {
	underWay := false
	for _, o := range calls {
		if o.Failed != nil || o.Op != "renew" && o.Op != "acquire" {
			continue
		}
		if o.Op == "renew" && o.Seat == c.Seat && o.Term == c.Term && *o.Call < *c.Return &&
			(o.Return == nil || *o.Return > *c.Call && len(*o.Rows) > 0) {
			underWay = true
		}
		if o.Return == nil || *o.Return >= *c.Call {
			continue
		}
		for _, r := range *o.Rows {
			if r[0].(string) == c.Seat && (int64(r[1].(float64)) == c.Term || o.Op == "renew" && o.Term == c.Term) &&
				o.Sent+1000*int64(r[2].(float64)) > *c.Return {
				return false
			}
		}
	}
	return underWay
}

// The operations of one election or group, without those that tell nothing
func operations(calls, ofAll []*call, settings line, object string) []porcupine.Operation {
	unheard, numbers := never, map[string]int{}
	number := func(name string) int {
		if _, known := numbers[name]; !known {
			numbers[name] = len(numbers)
		}
		return numbers[name]
	}
	var ops []porcupine.Operation
	for _, c := range calls {
		if c.Op == "acquire" && c.Return == nil && *c.Call < unheard {
			unheard = *c.Call
		}
	}
	for _, one := range append(append([]*call{}, calls...), ofAll...) {
		c := *one
		if c.Failed != nil || c.Op == "acquire" && (c.Return == nil || len(*c.Rows) == 0) ||
			c.Return == nil && strings.Contains("is_leader assert read", c.Op) {
			continue
		}
		if c.Rows != nil {
			for _, r := range *c.Rows {
				c.rows = append(c.rows, row{number(r[0].(string)), int64(r[1].(float64)), int64(r[2].(float64))})
			}
		}
		if c.Op != "acquire" && c.Op != "failover" {
			c.seat = number(c.Seat)
		}
		c.ret, c.unknown = never, c.Return == nil
		if !c.unknown {
			c.ret = *c.Return
		}
		c.unheard = unheard < c.ret && !c.unknown
		pooled := false // nobody can tell which server has answered
		for _, f := range ofAll {
			if f.Until != 0 && !c.unknown && c.ret > *f.Call {
				c.beside = c.beside || c.Server == f.From && *c.Call < f.Until
				pooled = pooled || c.Server == f.Pooler && *c.Call < f.Moved+resetUs
			}
		}
		if (c.beside || pooled) && !c.yes() { // it may not know of what is so by now
			continue
		}
		if pooled && strings.Contains("is_leader assert read", c.Op) {
			continue
		}
		if !c.unknown && !c.yes() && strings.Contains("is_leader assert read write", c.Op) && inDoubt(&c, calls) {
			continue
		}
		c.cap, c.waits = settings.Caps[object], settings.FencesWait != 0
		ops = append(ops, porcupine.Operation{Input: &c, Call: *c.Call, Return: c.ret})
	}
	return ops
}

func main() {
	objects, settings := read(os.Args[1:])
	ofAll, status, names := objects["*"], 0, []string{}
	delete(objects, "*")
	for name := range objects {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		ops := operations(objects[name], ofAll, settings, name)
		began := time.Now()
		result := porcupine.CheckOperationsTimeout(model.ToModel(), ops, patience)
		fmt.Printf("%s: %d operations, %.1f s: %s\n", name, len(ops), time.Since(began).Seconds(), result)
		if result != porcupine.Ok {
			status = 1
		}
	}
	os.Exit(status)
}
