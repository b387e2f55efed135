package main

import (
	"fmt"
	"math/rand"
)

type V map[string]bool

type Ev struct{ pos, agg, ver, uid int }
type Tx struct {
	id             int
	draws          []Ev
	sc             int
	idle, prepared bool
	aborted        bool // idle, to be rolled back to a savepoint
	aggs           map[int]bool
}
type DB struct { // durable
	events  map[int]Ev
	heads   []int
	cp      []int
	rev     []int
	open    []map[int]bool
	audit   []map[int]byte
	ledger  [][]Ev
	owner   []int
	seq     int
	prep    map[int]*Tx
	settled int
}

func (d *DB) clone() *DB {
	n := &DB{events: map[int]Ev{}, heads: append([]int{}, d.heads...), cp: append([]int{}, d.cp...), rev: append([]int{}, d.rev...), owner: append([]int{}, d.owner...), seq: d.seq, settled: d.settled, prep: map[int]*Tx{}}
	for k, v := range d.events {
		n.events[k] = v
	}
	for k, v := range d.prep {
		n.prep[k] = v
	}
	for c := range d.cp {
		o := map[int]bool{}
		for k := range d.open[c] {
			o[k] = true
		}
		a := map[int]byte{}
		for k, v := range d.audit[c] {
			a[k] = v
		}
		n.open = append(n.open, o)
		n.audit = append(n.audit, a)
		n.ledger = append(n.ledger, append([]Ev{}, d.ledger[c]...))
	}
	return n
}

type inc struct{ tok, start int } // zero: not to be seen, as on a standby
type Srv struct {
	d       *DB
	seq     int
	boot    int // true incarnation: changes cut connections
	inc     inc // what it shows
	holders map[int]*Tx
	aggLock map[int]*Tx
}
type S struct {
	*Srv         // the primary
	old     *Srv // the primary before the promotion, alive
	copy    *Srv // cold
	boots   int
	r       *rand.Rand
	v       V
	hist    []*DB
	rowLock []int // consumer -> batch id (0 free)
	left    *Tx   // stays open until everything else is handled
	relax   bool  // no longer
	maxOpen int
	nextID  int
	scN     int
	uid     int
	async   bool
	chaos   bool
	fr      []*F
	steps   int
	viol    []string
	trace   []string
	tr      bool
	cov     map[string]int
	thr     int
}

func (s *S) log(f string, a ...any) {
	if s.tr {
		s.trace = append(s.trace, fmt.Sprintf("%d ", s.steps)+fmt.Sprintf(f, a...))
	}
}
func (s *S) bad(f string, a ...any) {
	m := fmt.Sprintf(f, a...)
	s.viol = append(s.viol, m)
	s.log("VIOLATION %s", m)
}
func (s *S) wal() {
	s.d.seq = s.seq
	if s.v["crash"] {
		s.hist = append(s.hist, s.d.clone())
		if len(s.hist) > 4 {
			s.hist = s.hist[1:]
		}
	}
}

type Y func(struct{}) bool
