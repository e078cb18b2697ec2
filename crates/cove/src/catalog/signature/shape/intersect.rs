//! What two shapes both allow. Where it cannot be said in one shape, both are kept side by side.

use serde_json::Value;

use super::{Object, Shape, union};

/// Choices times choices explode; beyond this they are kept side by side.
const MAX_CHOICES: usize = 16;

pub(super) fn intersect(a: Shape, b: Shape, named: &dyn Fn(usize) -> Option<Shape>) -> Shape {
    use Shape::{Any, Both, Float, Int, List, Literal, Map, Named, Never, Text, Tuple, Union};
    match (a, b) {
        (a, b) if a == b => a,
        (Any, other) | (other, Any) => other,
        (Never, _) | (_, Never) => Never,
        (Shape::Object(a), Shape::Object(b)) => Shape::Object(merged(a, b, named)),
        (Map(of), Shape::Object(object)) | (Shape::Object(object), Map(of)) => {
            let extra = object.extra.clone().or_else(|| (*of != Any).then_some(of));
            Shape::Object(Object { extra, ..object })
        }
        (Map(a), Map(b)) => Map(Box::new(intersect(*a, *b, named))),
        (List(a), List(b)) => List(Box::new(intersect(*a, *b, named))),
        (List(of), Tuple(first, rest)) | (Tuple(first, rest), List(of)) => {
            Tuple(first.into_iter().map(|item| intersect(item, (*of).clone(), named)).collect(), rest)
        }
        (Map(of), Named(number)) | (Named(number), Map(of)) if *of == Any => Named(number),
        (Named(number), Shape::Object(object)) | (Shape::Object(object), Named(number)) => {
            match named(number) {
                Some(shape @ Shape::Object(_)) => intersect(shape, Shape::Object(object), named),
                _ => Both(vec![Named(number), Shape::Object(object)]),
            }
        }
        (Union(choices), other) | (other, Union(choices)) => {
            let count = if let Union(others) = &other { others.len() } else { 1 };
            if choices.len() * count > MAX_CHOICES {
                return Both(vec![Union(choices), other]);
            }
            union(choices.into_iter().map(|choice| intersect(choice, other.clone(), named)).collect())
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
        (Text, _) | (_, Text) => Never,
        _ => Never,
    }
}

fn allows(shape: &Shape, value: &Value) -> bool {
    match (shape, value) {
        (Shape::Literal(values), value) => values.contains(value),
        (Shape::Text, Value::String(_)) | (Shape::Bool, Value::Bool(_)) | (Shape::Null, Value::Null) => true,
        (Shape::Int | Shape::Float, Value::Number(_)) => true,
        (Shape::Named(_) | Shape::Both(_), _) => true,
        _ => false,
    }
}

fn merged(mut a: Object, b: Object, named: &dyn Fn(usize) -> Option<Shape>) -> Object {
    for theirs in b.fields {
        match a.fields.iter_mut().find(|ours| ours.name == theirs.name) {
            Some(ours) => {
                let shape = std::mem::replace(&mut ours.shape, Shape::Any);
                ours.shape = intersect(shape, theirs.shape, named);
                ours.required |= theirs.required;
                ours.default = ours.default.take().or(theirs.default);
                if ours.note.is_empty() {
                    ours.note = theirs.note;
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
