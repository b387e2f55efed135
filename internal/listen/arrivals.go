package listen

const (
	// echoesMissed is how many echoes in a row must be missing.
	echoesMissed = 2
	// silencesHeard is how many checks must have found new writes without any notification
	// since the first of them.
	silencesHeard = 3
)

// Signals counts the signals on a listening connection.
type Signals struct {
	Connected     bool
	Session       int // counts the connections
	Notifications int // notifications that writers send at their COMMIT
	Echoes        int // messages of this process to itself
	Answers       int // signs of life of any kind
}

// Verdict is the conclusion of [Arrivals].
type Verdict int

const (
	Arriving Verdict = iota
	// WrongServer means that messages from another connection do not arrive on this one, although
	// it answers.
	WrongServer
	// NoSender means that writers commit without a notification.
	NoSender
)

// Arrivals decides whether notifications arrive. The interval between checks must be longer
// than a notification takes. The zero value has no observations.
//
// The head is the highest number of a committed write. It does not move while no write commits,
// or while a transaction stays open. The notification of a write arrives after the same COMMIT.
//
// Each verdict needs a proof that there is no other cause. NoSender needs an echo that came back
// during the silence. WrongServer needs an answer of the connection while echoes are missing. An
// echo counts as missing at the next check.
type Arrivals struct {
	heard    Signals
	head     int64 // the highest seen
	awaited  bool  // an echo was sent since the last check
	missed   int   // echoes in a row that were missing at the next check
	answered bool  // the connection has answered since the first echo was missing
	silent   int   // checks that found new writes since the last notification
	proven   bool  // an echo came back since the first of these checks
}

// Check records h and head. It calls echo if an echo is needed as a proof. sent reports whether
// the echo was sent.
func (n *Arrivals) Check(h Signals, head int64, echo func() (sent bool)) {
	n.awaited = n.check(h, head) && echo()
}

// check reports whether to send an echo.
func (n *Arrivals) check(h Signals, head int64) (ask bool) {
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
	case fresh || h.Notifications != n.heard.Notifications:
		n.silent, n.proven = 0, false
	case came && n.silent > 0:
		n.proven = true
	}
	if grown && h.Connected && !fresh && h.Notifications == n.heard.Notifications {
		n.silent++
	}
	n.heard, n.head = h, max(n.head, head)
	return h.Connected && (fresh || n.missed > 0 || n.silent > 0 && (grown || !n.proven))
}

// Doubted reports whether the connection must prove that it is alive.
func (n *Arrivals) Doubted() bool { return n.missed > 0 }

// Verdict returns the conclusion from the checks.
func (n *Arrivals) Verdict() Verdict {
	switch {
	case !n.heard.Connected:
		return Arriving // the caller knows that the connection is lost
	case n.missed >= echoesMissed && n.answered:
		return WrongServer
	case n.silent >= silencesHeard && n.proven:
		return NoSender
	}
	return Arriving
}
