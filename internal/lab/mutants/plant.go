// Package mutants lists mutants: mistakes that somebody could make in the
// protocol, as replacements of source text. It builds commands with them; the
// sources themselves have no switches. The sim finds the mistakes, and a mistake
// that it does not find says that the sim is blind there. A few are found by a
// test of their own instead.
package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Mutant is a mistake and how to make it.
type Mutant struct {
	Name string
	// Mistake says what is wrong, as its author would have put it.
	Mistake string
	Edits   []Edit
	// Faults are so in every run that is to find it, whatever else is drawn, as
	// -faults of the sim takes them: what the mistake needs is too rare
	// otherwise, or, with 0, too often in the way.
	Faults string
	// Jobs says that it is about jobs: runs of jobs are to find it.
	Jobs bool
	// Draws is what the seed of a run must have drawn, or the mistake does not
	// come up: how one of the lines begins that the sim prints of its settings.
	// Empty: any will do.
	Draws string
	// Test is the test that finds it, where the sim cannot, or seldom does: what it
	// needs lies between two statements, or is nothing that the sim's workers do
	// often.
	Test Test
	// Harmless says why nothing can come of it here. Empty: the sim must find
	// it.
	Harmless string
}

// Test is a test by its name and its package, as go test takes them.
type Test struct{ Package, Name string }

// Edit replaces a text that occurs once in a file.
type Edit struct {
	File     string // from the root of the module, with slashes
	Old, New string
}

// Variants returns the files under root as the mutant changes them, by name from
// the root.
func (m Mutant) Variants(root string) (map[string]string, error) {
	files := map[string]string{}
	for _, e := range m.Edits {
		text, ok := files[e.File]
		if !ok {
			raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
			if err != nil {
				return nil, fmt.Errorf("mutants: mutant %s: %w", m.Name, err)
			}
			text = string(raw)
		}
		if n := strings.Count(text, e.Old); n != 1 {
			return nil, fmt.Errorf("mutants: mutant %s: a text to be replaced occurs %d times in %s, not once; the code has changed, change the replacement:\n%s", m.Name, n, e.File, e.Old)
		}
		files[e.File] = strings.Replace(text, e.Old, e.New, 1)
	}
	return files, nil
}

// Overlay writes the changed files, and what go build takes as -overlay, into
// an empty directory. It returns the name of the latter.
func (m Mutant) Overlay(root, dir string) (string, error) {
	variants, err := m.Variants(root)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for name, text := range variants {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("mutants: %w", err)
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = path
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("mutants: %w", err)
	}
	path := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("mutants: %w", err)
	}
	return path, nil
}

// calm keeps off what is in the way of mistakes that show where the log ends:
// workers and their consumers are there, and writers are not slowed down.
const calm = "hole=0,contract=0,picky=0,restore=0,standby=0,split=0,crash=0,vanish=0,cut=0,slow=0,stall=0,restart=0,move=0,kill-batch=0,kill-lock=0,kill-scan=0,unregister=0,unassign=0," +
	"depose=0,deafen=0,old-build=0,error=0,panic=0,pause=0,reset=0,forward=0,skip=0,server-crash=0,backend-crash=0,delay=0,redraw=0,idle=0,prepare=0"

// crashes take back what was committed, again and again.
const crashes = calm + ",backend-crash=5,async-writers=1,async-workers=1"

// crashesAtHead leave the consumers the time to come to the end of the log again
// before the next one, behind writers that often sit idle: only there the frontier
// reads for them. Each crash takes back what they have handled, so with more of
// them they would never get there.
const crashesAtHead = calm + ",idle=10,backend-crash=0.4,async-writers=1,async-workers=1"
