package mutants

// Apart is no mistake: in this build the frontier reads nothing for consumers,
// each reads for itself. cmd/bench shows what that costs.
var Apart = Mutant{
	Name:    "apart",
	Mistake: "the frontier keeps no recent events",
	Edits:   []Edit{{"frontier/frontier.go", `func (f *Frontier) Follow() { f.follow.Store(true) }`, `func (f *Frontier) Follow() {}`}},
}
