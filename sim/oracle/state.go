package oracle

// State is a state that runs should reach, and how often a run did.
type State struct {
	Name  string `json:"name"`
	Count int64  `json:"count"`
}

// Condition is something that faults bring about. States of a run need it.
type Condition string

// state is a row of the table, and the conditions without which it is not
// reached.
type state struct {
	name  string
	needs []Condition
	rare  bool    // a campaign may lack it
	slow  float64 // how many times as long as others it takes to come; 0: as long
}

func one(is bool) int64 {
	if is {
		return 1
	}
	return 0
}
