package ident

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestParseTable(t *testing.T) {
	long := strings.Repeat("x", 63)
	for in, want := range map[string]string{
		"events":       `"events"`,
		"Events":       `"events"`,
		"infra.nodes":  `"infra"."nodes"`,
		"_a.b$1":       `"_a"."b$1"`,
		long:           `"` + long + `"`,
		"s." + long:    `"s"."` + long + `"`,
		"select.where": `"select"."where"`,
	} {
		got, err := ParseTable("WithEventsTable", in)
		if err != nil || got.SQL() != want {
			t.Errorf("ParseTable(%q) = %s, %v; want %s", in, got.SQL(), err, want)
		}
	}
	for _, in := range []string{"", ".", "a.", ".a", "a.b.c", "a b", `a"b`, "a;drop table x", "1a", "ä", "a-b", "a\x00", long + "x"} {
		got, err := ParseTable("WithEventsTable", in)
		if err == nil {
			t.Errorf("ParseTable(%q) = %s, want an error", in, got.SQL())
		} else if !strings.Contains(err.Error(), "WithEventsTable") {
			t.Errorf("ParseTable(%q): %v does not name the setting", in, err)
		}
	}
}

// An accepted name is one or two quoted identifiers and nothing else.
func TestParseTableAcceptsOnlyIdentifiers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.OneOf(rapid.String(), rapid.StringMatching(`[a-zA-Z_."; -]{1,12}`)).Draw(t, "in")
		table, err := ParseTable("table", in)
		if err != nil {
			return
		}
		if got := strings.ReplaceAll(table.SQL(), `"`, ""); got != strings.ToLower(in) || strings.ContainsAny(got, ` ;-'\`) {
			t.Fatalf("%q became %s", in, table.SQL())
		}
	})
}

func TestDerive(t *testing.T) {
	table, err := ParseTable("t", "infra.checkpoints")
	if err != nil {
		t.Fatal(err)
	}
	derived, err := table.Derive("t", "_token")
	if err != nil || derived.SQL() != `"infra"."checkpoints_token"` {
		t.Fatalf("got %s, %v", derived.SQL(), err)
	}
	table.Name = strings.Repeat("x", 60)
	if _, err := table.Derive("WithConsumerCheckpointsTable", "_token"); err == nil {
		t.Fatal("a derived name beyond the limit was accepted")
	}
}
