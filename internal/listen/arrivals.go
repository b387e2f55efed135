package listen

const (
	// echoesMissed is how many echoes in a row must not have come back.
	echoesMissed = 2
	// silencesHeard is how many checks must have found new writes, without any
	// notification since the first of them.
	silencesHeard = 3
)

// Heard is what a listening connection has heard.
type Heard struct {
	Connected bool
	Session   int // counts the connections
	News      int // notifications that writers send when they commit
	Echoes    int // of what this process has sent to itself
	Answers   int // signs of life, of any kind
}

// Verdict is what [Arrivals] have shown.
type Verdict int

const (
	NoTrouble Verdict = iota
	// Elsewhere: what is sent on another connection does not arrive on this one,
	// though it answers.
	Elsewhere
	// Nobody: writers commit and do not notify.
	Nobody
)

// Arrivals decide whether notifications arrive. Checks must be further apart
// than a notification takes. The zero value has seen nothing.
//
// The head is the highest number that a committed write shows: it stays while
// nobody writes, and while a transaction stays open. The notification of a write
// comes at the same COMMIT.
//
// Each verdict needs a proof that nothing else is wrong. Nobody notifies if an
// echo came back during the silence. The connection leads elsewhere if it
// answers while echoes are missed. An echo counts as missed at the next check.
type Arrivals struct {
	heard    Heard
	head     int64 // the highest seen
	awaited  bool  // an echo was sent since the latest check
	missed   int   // echoes in a row that have not come by the check after them
	answered bool  // the connection lives, since the first echo was missed
	silent   int   // checks that found new writes, since the last notification
	proven   bool  // an echo came back, since the first of these checks
}

// Check takes note of what was heard and written. It sends an echo if that is to
// prove that notifications arrive where somebody sends them. echo reports
// whether it could.
func (n *Arrivals) Check(h Heard, head int64, echo func() (sent bool)) {
	n.awaited = n.check(h, head) && echo()
}

// check reports whether to send an echo.
func (n *Arrivals) check(h Heard, head int64) (ask bool) {
	fresh, grown := h.Session != n.heard.Session, head > n.head && n.head > 0
	came := h.Echoes != n.heard.Echoes
	switch {
	case fresh || came:
		n.missed, n.answered = 0, false
	case n.missed > 0 && h.Answers != n.heard.Answers:
		n.answered = true
	}
	if n.awaited && !fresh && !came {
		n.missed++
	}
	switch {
	case fresh || h.News != n.heard.News:
		n.silent, n.proven = 0, false
	case came && n.silent > 0:
		n.proven = true
	}
	if grown && h.Connected && !fresh && h.News == n.heard.News {
		n.silent++
	}
	n.heard, n.head = h, max(n.head, head)
	return h.Connected && (fresh || n.missed > 0 || n.silent > 0 && (grown || !n.proven))
}

// Doubted reports whether the connection must prove that it lives.
func (n *Arrivals) Doubted() bool { return n.missed > 0 }

// Verdict returns what the checks have shown.
func (n *Arrivals) Verdict() Verdict {
	switch {
	case !n.heard.Connected:
		return NoTrouble // the connection tells itself
	case n.missed >= echoesMissed && n.answered:
		return Elsewhere
	case n.silent >= silencesHeard && n.proven:
		return Nobody
	}
	return NoTrouble
}
