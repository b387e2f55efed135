package ops

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// revised is the revision of a row of checkpoints.
type revised struct {
	name     string
	revision int64
}

// revisionOf returns the revision of a consumer with these rows, its own row first and its
// units in order. One row has its own. Of several it is a number made of all names and
// revisions: each slot's revision grows for ever, so no list of these comes twice. Their
// sum may, since a merge of units lowers it. 52 bits are a whole number in JSON everywhere.
func revisionOf(rows []revised) int64 {
	switch len(rows) {
	case 0:
		return 0
	case 1:
		return rows[0].revision
	}
	h := sha256.New()
	for _, r := range rows {
		fmt.Fprintf(h, "%q %d\n", r.name, r.revision)
	}
	return int64(binary.BigEndian.Uint64(h.Sum(nil)) >> 12)
}
