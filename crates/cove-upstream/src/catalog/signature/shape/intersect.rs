//! The intersection of two shapes. If one shape cannot express it, both are kept.

use serde_json::Value;

use super::{ObjectShape, SchemaShape, make_union};

/// Intersecting unions multiplies their choices. Above this number, both unions are kept.
const MAX_CHOICES: usize = 16;

pub(super) fn intersect(a: SchemaShape, b: SchemaShape, named: &dyn Fn(usize) -> Option<SchemaShape>) -> SchemaShape {
    use SchemaShape::{Any, Both, Float, Int, List, Literal, Map, Named, Never, Tuple, Union};
    match (a, b) {
        (a, b) if a == b => a,
        (Any, other) | (other, Any) => other,
        (Never, _) | (_, Never) => Never,
        (SchemaShape::Object(a), SchemaShape::Object(b)) => SchemaShape::Object(merge_objects(a, b, named)),
        (Map(of), SchemaShape::Object(object)) | (SchemaShape::Object(object), Map(of)) => {
            let extra = object.extra.clone().or_else(|| (*of != Any).then_some(of));
            SchemaShape::Object(ObjectShape { extra, ..object })
        }
        (Map(a), Map(b)) => Map(Box::new(intersect(*a, *b, named))),
        (List(a), List(b)) => List(Box::new(intersect(*a, *b, named))),
        (List(of), Tuple(first, rest)) | (Tuple(first, rest), List(of)) => {
            Tuple(first.into_iter().map(|item| intersect(item, (*of).clone(), named)).collect(), rest)
        }
        (Map(of), Named(number)) | (Named(number), Map(of)) if *of == Any => Named(number),
        (Named(number), SchemaShape::Object(object)) | (SchemaShape::Object(object), Named(number)) => {
            match named(number) {
                Some(shape @ SchemaShape::Object(_)) => intersect(shape, SchemaShape::Object(object), named),
                _ => Both(vec![Named(number), SchemaShape::Object(object)]),
            }
        }
        (Union(choices), other) | (other, Union(choices)) => {
            let count = if let Union(others) = &other { others.len() } else { 1 };
            if choices.len() * count > MAX_CHOICES {
                return Both(vec![Union(choices), other]);
            }
            make_union(choices.into_iter().map(|choice| intersect(choice, other.clone(), named)).collect())
        }
        (Literal(values), other) | (other, Literal(values)) => {
            let left: Vec<Value> = values.into_iter().filter(|value| allows(&other, value)).collect();
            if left.is_empty() { Never } else { Literal(left) }
        }
        (Int, Float) | (Float, Int) => Int,
        (Both(mut all), other) | (other, Both(mut all)) => {
            if !all.contains(&other) {
                all.push(other);
            }
            Both(all)
        }
        (Named(a), b) => Both(vec![Named(a), b]),
        (a, Named(b)) => Both(vec![a, Named(b)]),
        (a @ Tuple(..), b @ Tuple(..)) => Both(vec![a, b]),
        _ => Never,
    }
}

fn allows(shape: &SchemaShape, value: &Value) -> bool {
    match (shape, value) {
        (SchemaShape::Literal(values), value) => values.contains(value),
        (SchemaShape::Text, Value::String(_))
        | (SchemaShape::Bool, Value::Bool(_))
        | (SchemaShape::Null, Value::Null) => true,
        (SchemaShape::Int | SchemaShape::Float, Value::Number(_)) => true,
        (SchemaShape::Named(_) | SchemaShape::Both(_), _) => true,
        _ => false,
    }
}

fn merge_objects(mut a: ObjectShape, b: ObjectShape, named: &dyn Fn(usize) -> Option<SchemaShape>) -> ObjectShape {
    for theirs in b.fields {
        match a.fields.iter_mut().find(|ours| ours.name == theirs.name) {
            Some(ours) => {
                let shape = std::mem::replace(&mut ours.shape, SchemaShape::Any);
                ours.shape = intersect(shape, theirs.shape, named);
                ours.required |= theirs.required;
                ours.default = ours.default.take().or(theirs.default);
                if ours.note.is_empty() {
                    ours.note = theirs.note;
                }
                if ours.description.is_empty() {
                    ours.description = theirs.description;
                }
            }
            None => a.fields.push(theirs),
        }
    }
    a.fields.sort_by_key(|field| !field.required);
    a.extra = a.extra.or(b.extra);
    a.needs.extend(b.needs);
    a
}
