package ledger

import (
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// TestNoFlippedBitReadsAsAnotherGrant: each bit of a grant's file flips in turn. The file is then
// damaged, or reads as the same grant.
func TestNoFlippedBitReadsAsAnotherGrant(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	b.put(g)
	whole := []byte(b.file(g.ID))
	want, err := b.get(g.ID)
	if err != nil {
		t.Fatal(err)
	}
	harmless := 0
	for at := range whole {
		for bit := range 8 {
			flipped := append([]byte{}, whole...)
			flipped[at] ^= 1 << bit
			b.setFile(g.ID, string(flipped))
			got, err := b.get(g.ID)
			if err == nil && !reflect.DeepEqual(got, want) {
				t.Fatalf("bit %d of byte %d: %+v, was %+v", bit, at, got, want)
			}
			if err == nil {
				harmless++
			}
		}
	}
	b.setFile(g.ID, string(whole))
	if most := 8 * len(sumStart); harmless > most {
		t.Errorf("%d of %d flips are not noticed, want at most the %d of the first line", harmless,
			8*len(whole), most)
	}
}

// TestAnOlderWriterLeavesNoWrongSum: it keeps the member at the end of what it writes.
func TestAnOlderWriterLeavesNoWrongSum(t *testing.T) {
	b := newLedger(t)
	g := sample(1)
	b.put(g)
	var rec record
	if err := json.Unmarshal([]byte(b.file(g.ID)), &rec); err != nil || len(rec.Sum) != sumSize {
		t.Fatalf("%+v, %v", rec, err)
	}
	sum := rec.Sum
	rec.Sum, rec.Label = "", "of an older version"
	data, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(strings.TrimSpace(string(data)), "\n}") + ",\n  \"sum\": \"" + sum + "\"\n}\n"
	b.setFile(g.ID, text)
	got, err := b.get(g.ID)
	if err != nil || got.Label != "of an older version" {
		t.Fatalf("%+v, %v", got, err)
	}
	b.put(got)
	if again := b.file(g.ID); strings.Count(again, `"sum"`) != 1 || !strings.HasPrefix(again, sumStart) {
		t.Errorf("written again it is %s", again)
	}
}

// TestAFlippedFileIsDamaged, wherever behind the first line the bit is.
func TestAFlippedFileIsDamaged(t *testing.T) {
	text := withSum([]byte("{\n  \"version\": 1,\n  \"creator\": {\"pid\": 1234}\n}\n"))
	if err := checkSum(text); err != nil {
		t.Error(err)
	}
	for at := len(sumStart); at < len(text); at++ {
		text[at] ^= 2
		if err := checkSum(text); !errors.Is(err, errSum) {
			t.Errorf("byte %d: %v", at, err)
		}
		text[at] ^= 2
	}
	for _, short := range []string{sumStart, sumStart + "1234", "{\n}\n", ""} {
		if err := checkSum([]byte(short)); (err != nil) != strings.HasPrefix(short, sumStart) {
			t.Errorf("%q: %v", short, err)
		}
	}
}

// TestNoFlippedBitIsReadInTheRunDirectory: the same for a container's binding, and for what the
// watch found.
func TestNoFlippedBitIsReadInTheRunDirectory(t *testing.T) {
	b := newLedger(t)
	b.put(sample(1))
	b.bind(bindingOf(id(1), "c1"))
	if err := b.SetFound(Found{Outside: map[string]grant.Bytes{gpu0: grant.GiB}}); err != nil {
		t.Fatal(err)
	}
	for path, read := range map[string]func(tx *Tx) error{
		b.files.bindings.path(keyOf("c1")): func(tx *Tx) error {
			_, err := tx.Bindings.files.load(keyOf("c1"))
			return err
		},
		b.files.found: func(tx *Tx) error { _, err := tx.Found(); return err },
	} {
		whole, err := os.ReadFile(path)
		if err == nil {
			err = b.View(read)
		}
		if err != nil {
			t.Fatal(err)
		}
		for at := len(sumStart); at < len(whole); at++ {
			for bit := range 8 {
				flipped := append([]byte{}, whole...)
				flipped[at] ^= 1 << bit
				if err := os.WriteFile(path, flipped, 0o600); err != nil {
					t.Fatal(err)
				}
				if b.View(read) == nil {
					t.Fatalf("bit %d of byte %d of %s is not noticed:\n%s", bit, at, path, flipped)
				}
			}
		}
		if err := os.WriteFile(path, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSumIsThatOfTheLibrary compares with hash/crc32, whose sums the files of older versions have.
func TestSumIsThatOfTheLibrary(t *testing.T) {
	table := crc32.MakeTable(crc32.Castagnoli)
	random := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, 4096)
	for size := range data {
		data[size] = byte(random.Uint32())
		if got, want := crc32c(data[:size]), crc32.Checksum(data[:size], table); got != want {
			t.Fatalf("of %d bytes: %08x, want %08x", size, got, want)
		}
	}
}
