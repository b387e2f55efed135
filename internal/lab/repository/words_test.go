package repository_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// avoided has words of this project's own that have hardly any other meaning, and the field's
// words in their place.
var avoided = map[string]string{}

func avoid(use string, words ...string) {
	for _, word := range words {
		avoided[word] = use
	}
}

func init() {
	avoid("poll, read, search, check, seem", "look", "looks", "looked", "looking")
	avoid("dead letter", "letter", "letters")
	avoid("deferred", "lazy", "lazily")
	avoid("merge barrier, arrive, abort", "meeting", "attend", "attends", "adjourn", "adjourns", "adjourned")
	avoid("fatal error, transaction intact", "accuse", "accuses", "accused", "innocent")
	avoid("outcome lookup", "inquiry", "inquiries")
	avoid("staleness", "vigil")
	avoid("observer, message", "voice", "voices")
	avoid("change, notification", "news")
	avoid("condition, failure", "trouble", "troubles", "troubled")
	avoid("in flight", "in hand")
	avoid("wake, handle", "nudge", "nudges", "nudged", "heed", "heeds", "heeded")
	avoid("maintenance, heartbeat", "chore", "chores", "pulse", "pulses")
	avoid("release orphans, extension", "disown", "disowns", "disowned", "companion", "companions")
	avoid("dry run, preview", "trial", "trials", "rehearse", "rehearsal")
	avoid("demand", "wish", "wishes", "wished", "wishing")
	avoid("mutant", "planted")
	avoid("missing", "lacking")
	avoid("ledger", "book", "books")
	avoid("the noun", "whoever")
	avoid("record", "take note", "takes note", "took note")
}

// allowed are phrases with such a word in another meaning, or in a name that users know.
var allowed = regexp.MustCompile(strings.Join([]string{
	`dead[ _-]letters?|counter \| letter`, // the field's word
	`capital letters|letters than ascii|letters, digits|letters and digits|with a letter|(first|last) letter`, // of the alphabet
	`letters (retry|discard|list|show|%s)\b`, // verbs of pgfrontier
	`look(s|ed)? up\b`,                       // the field's word
	`worker\.trouble|recovery\.trouble`,      // names of before, in the changelog
	`"[^"]*"`,                                // quoted: what another text says
}, "|"))

// Comments, documents, errors, messages of logs and names of tests have the field's words.
func TestWords(t *testing.T) {
	seen := 0
	check := func(where, text string) {
		seen++
		if text = strings.ToLower(text); len(faults(text)) == 0 {
			return
		}
		text = strings.Join(strings.Fields(text), " ")
		for _, word := range faults(allowed.ReplaceAllString(text, "")) {
			t.Errorf("%s: %q instead of: %s\n\t%s", where, word, avoided[word], text)
		}
	}
	err := filepath.WalkDir(".", func(file string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && name != "." && strings.HasPrefix(name, "."):
			return filepath.SkipDir
		case path.Ext(name) == ".md":
			for _, paragraph := range strings.Split(prose(read(t, file)), "\n\n") {
				check(file, paragraph)
			}
		case path.Ext(name) == ".go" && name != "words_test.go":
			textsOf(file, []byte(read(t, file)), check)
		}
		return nil
	})
	if err != nil || seen < 10_000 {
		t.Errorf("%d texts were found: %v", seen, err)
	}
}

// faults are the words of a text that are avoided.
func faults(lower string) (all []string) {
	before := ""
	for word := range strings.FieldsFuncSeq(lower, func(r rune) bool { return r < 'a' || r > 'z' }) {
		if word == "hand" || word == "note" { // of a phrase
			word = before + " " + word
		}
		if _, bad := avoided[word]; bad {
			all = append(all, word)
		}
		before = word
	}
	return all
}

var (
	sql  = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|MATERIALIZED|LIMIT)\b`)
	hump = regexp.MustCompile(`[A-Z][a-z]*`)
)

// textsOf gives check the comments of a file, and the names of its tests or its literals. The
// first word of a comment is the name that it explains. A literal of one or two words is a name,
// and SQL has the names of tables and columns.
func textsOf(file string, source []byte, check func(where, text string)) {
	files := token.NewFileSet()
	in := files.AddFile(file, -1, len(source))
	var s scanner.Scanner
	s.Init(in, source, nil, scanner.ScanComments)
	test := strings.HasSuffix(file, "_test.go")
	comment, from, last, before := "", 0, 0, token.EOF
	for {
		pos, tok, text := s.Scan()
		line := in.Line(pos)
		if comment != "" && (tok != token.COMMENT || line > last+1) {
			name, rest, _ := strings.Cut(strings.TrimSpace(comment), " ")
			if _, bad := avoided[strings.ToLower(name)]; bad {
				comment = rest
			}
			check(file+":"+strconv.Itoa(from), comment)
			comment = ""
		}
		switch {
		case tok == token.EOF:
			return
		case tok == token.SEMICOLON && text == "\n":
			continue
		case tok == token.COMMENT:
			if comment == "" {
				from = line
			}
			comment += " " + strings.Trim(text, "/*")
			last = line + strings.Count(text, "\n")
		case tok == token.IDENT && before == token.FUNC && test && strings.HasPrefix(text, "Test"):
			check(file+":"+strconv.Itoa(line), hump.ReplaceAllString(text, " $0"))
		case tok == token.STRING && !test && strings.Count(text, " ") > 1 && !sql.MatchString(text):
			if plain, err := strconv.Unquote(text); err == nil {
				check(file+":"+strconv.Itoa(line), plain)
			}
		}
		before = tok
	}
}

// prose returns a text without its code.
func prose(markdown string) string {
	markdown = regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(markdown, "")
	return regexp.MustCompile("`[^`]*`|\\]\\([^)]*\\)").ReplaceAllString(markdown, "x")
}
