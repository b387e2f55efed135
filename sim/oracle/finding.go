package oracle

// Finding is what the oracle says about one invariant.
type Finding struct {
	Name     string   `json:"name"`
	Rule     string   `json:"rule"`
	Checks   int64    `json:"checks"`
	Broken   int64    `json:"broken"`
	Examples []string `json:"examples,omitempty"` // the first few of what broke it
}

// Holds reports that the invariant was checked and never broken.
func (f Finding) Holds() bool { return f.Checks > 0 && f.Broken == 0 }

// maxExamples is how many counterexamples of an invariant are kept.
const maxExamples = 5

// check counts a check; otherwise says what is wrong.
func (f *Finding) check(ok bool, otherwise func() string) {
	f.Checks++
	if ok {
		return
	}
	f.Broken++
	if len(f.Examples) < maxExamples {
		f.Examples = append(f.Examples, otherwise())
	}
}
