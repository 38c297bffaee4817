package simulated

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/gpuledger/gpuledger/internal/grant"
)

// wanted says what a key of a description holds. What belongs into a list is below its name and
// "/".
var wanted = map[string]string{
	"":        `an object as {"version": 1, "gpus": [...]}`,
	"version": fmt.Sprint(version),
	"gpus":    "a list of GPUs",
	"gpus/":   `an object as {"memory": "80GiB"}`,
	"name":    `a text, as "H100"`,
	"memory":  `a size, as "80GiB", or a number of bytes`,
	"mig":     `a list of profiles, as ["1g.10gb"]`,
	"mig/":    `a profile, as "1g.10gb"`,
	"health":  `"ok", or what is wrong with the GPU`,
	"minor":   "a whole number",
	"numa":    "a whole number",
}

// kinds are the values of JSON in words.
var kinds = map[jsontext.Kind]string{'{': "an object", '[': "a list", '"': "a text", '0': "a number",
	't': "true", 'f': "false", 'n': "null"}

// inList matches an element's pointer, with the name of its list.
var inList = regexp.MustCompile(`(\w+/)[0-9]+$`)

// mistake says in words what is wrong with a text that is no description: where, and what is wanted
// there.
func mistake(err error) error {
	var meaning *json.SemanticError
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &meaning):
		return misplaced(meaning)
	case errors.As(err, &syntax) && errors.Is(err, jsontext.ErrDuplicateName):
		return fmt.Errorf("%s is there twice", grant.Printable(string(syntax.JSONPointer)))
	case errors.As(err, &syntax):
		return fmt.Errorf("it is no JSON after byte %d: %w", syntax.ByteOffset, syntax.Err)
	}
	return err
}

// misplaced says what is wrong with a value.
func misplaced(e *json.SemanticError) error {
	where, key := grant.Printable(string(e.JSONPointer)), e.JSONPointer.LastToken()
	if part := inList.FindStringSubmatch(where); part != nil {
		key = part[1]
	}
	value := grant.Printable(string(e.JSONValue))
	if value == "" {
		value = kinds[e.JSONKind]
	}
	number := errors.Is(e.Err, strconv.ErrSyntax) || errors.Is(e.Err, strconv.ErrRange)
	switch {
	case errors.Is(e.Err, json.ErrUnknownName):
		return fmt.Errorf("there is no key %s; a GPU has the keys name, memory, mig, health, minor and numa",
			where)
	case e.Err != nil && !number:
		return fmt.Errorf("%s: %w", where, e.Err)
	case where == "":
		where = "the whole"
	}
	return fmt.Errorf("%s is %s; want %s", where, value, wanted[key])
}
