package main

func (s *S) see(x *Srv) inc {
	i := x.inc
	if s.v["xTokenRestored"] {
		i.start = 0
	}
	if s.v["xBackendCrash"] {
		i.tok = 0
	}
	return i
}
func (s *S) next() int { s.boots++; return s.boots }

// where a read gets to; its connection stays there
func (s *S) route() *Srv {
	if s.chaos && s.v["split"] && s.r.Intn(4) == 0 {
		if s.old != nil && s.r.Intn(2) == 0 {
			s.cov["read of old primary"]++
			return s.old
		}
		if len(s.hist) > 0 {
			s.cov["read of standby"]++
			return &Srv{d: s.hist[s.r.Intn(len(s.hist))]}
		}
	}
	return s.Srv
}
func (s *S) dial() *Srv {
	if s.chaos && s.old != nil && s.r.Intn(3) == 0 {
		s.cov["frontier on old primary"]++
		return s.old
	}
	return s.Srv
}

// up lets x begin with d: no sessions, what is prepared holds its locks
func (s *S) up(x *Srv, d *DB, i inc) {
	x.d, x.seq, x.inc, x.boot = d, d.seq, i, s.next()
	x.holders, x.aggLock = map[int]*Tx{}, map[int]*Tx{}
	for id, t := range d.prep {
		x.holders[id] = t
		for a := range t.aggs {
			x.aggLock[a] = t
		}
	}
	s.Srv = x
	for k := range s.rowLock {
		s.rowLock[k] = 0
	}
}
func (s *S) crash() {
	i := len(s.hist) - 1
	if s.async {
		i = s.r.Intn(len(s.hist))
	}
	s.hist = s.hist[:i+1]
	x, to := s.Srv, inc{s.next(), s.inc.start}
	k := s.r.Intn(3)
	if k > 0 && !s.v["xBackendCrash"] || s.r.Intn(2) == 0 { // else only a backend was killed
		to.start = s.next()
	}
	if k == 2 && s.v["split"] {
		s.old, x, to.start = s.Srv, &Srv{}, s.next()
		if s.r.Intn(2) == 0 {
			s.old.holders = map[int]*Tx{}
		}
		s.cov["promotion"]++
	}
	s.up(x, s.hist[i].clone(), to)
	s.cov["crash"]++
	s.log("CRASH to seq %d: %v", s.seq, to)
}
func (s *S) cold() {
	if s.copy == nil || s.r.Intn(3) == 0 {
		s.d.seq = s.seq
		s.copy = &Srv{d: s.d.clone(), inc: s.inc}
		s.up(s.Srv, s.d, inc{s.inc.tok, s.next()})
		s.log("COPY at seq %d", s.seq)
	} else {
		x := s.Srv
		if s.v["split"] && s.r.Intn(2) == 0 {
			s.old, x = x, &Srv{}
		}
		s.up(x, s.copy.d.clone(), inc{s.copy.inc.tok, s.next()})
		s.cov["restore"]++
		s.log("RESTORE to seq %d", s.seq)
		s.hist = nil
	}
	s.wal()
}
