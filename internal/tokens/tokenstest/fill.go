// Package tokenstest tests functions that read or write a type token by token: whether they have
// the same results as the JSON library has by the type's tags. Reads and Writes compare; Filled and
// Empty make values of the type.
package tokenstest

import (
	"fmt"
	"reflect"
	"time"
)

// Filled is a value of the type in which every field, at any depth, has a value of its own. special
// sets those that may not have any: it reports which it did.
func Filled[T any](special func(field any) bool) T {
	var value T
	n := 0
	fill(reflect.ValueOf(&value).Elem(), special, &n)
	return value
}

// Empty is a value of the type whose lists and maps have no elements and whose pointers point to
// such values. The rest is zero.
func Empty[T any]() T {
	var value T
	empty(reflect.ValueOf(&value).Elem())
	return value
}

func empty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		empty(v.Elem())
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			empty(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
	}
}

func fill(v reflect.Value, special func(any) bool, n *int) {
	*n++
	if special != nil && special(v.Addr().Interface()) {
		return
	}
	if t, isTime := v.Addr().Interface().(*time.Time); isTime {
		*t = time.Unix(int64(*n), 5).UTC()
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), special, n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), special, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), special, n)
		fill(v.Index(1), special, n)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), special, n)
		}
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value, special, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key ", *n)), value)
	case reflect.String:
		v.SetString(fmt.Sprint("value ", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n))
	case reflect.Float64:
		v.SetFloat(float64(*n) / 8)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		panic(fmt.Sprintf("cannot fill a %s", v.Type()))
	}
}
