//! Which items get series when there are too many: as many of each namespace as of any other, whoever has more.

use std::collections::HashMap;

/// Chooses items whose costs sum up to `limit` at most. Returns them and the cost of the others.
///
/// If not all fit, a namespace gets its second item only after every namespace has got its first, by cost. Within a
/// namespace the items come in `order`. The choice depends on the items alone, so that it is the same at the next scrape.
pub(super) fn fair_share<T, K: Ord>(
    all: Vec<T>,
    limit: usize,
    namespace: impl Fn(&T) -> &String,
    order: impl Fn(&T) -> K,
    cost: impl Fn(&T) -> usize,
) -> (Vec<T>, usize) {
    let total: usize = all.iter().map(&cost).sum();
    if total <= limit {
        return (all, 0);
    }
    let mut all = all;
    all.sort_by_cached_key(&order);
    let mut spent = HashMap::<String, usize>::new();
    let mut ranked: Vec<_> = all
        .into_iter()
        .map(|item| {
            let of_namespace = spent.entry(namespace(&item).clone()).or_default();
            *of_namespace += cost(&item);
            (*of_namespace, item)
        })
        .collect();
    // Stable: items of the same rank stay in their order.
    ranked.sort_by_key(|(rank, _)| *rank);
    let (mut used, mut full) = (0, false);
    let shown = ranked.into_iter().map(|(_, item)| item).take_while(|item| {
        full |= used + cost(item) > limit;
        if !full {
            used += cost(item);
        }
        !full
    });
    let shown: Vec<_> = shown.collect();
    (shown, total - used)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Item = (String, u32, usize);

    fn item(namespace: &str, name: u32, cost: usize) -> Item {
        (namespace.to_owned(), name, cost)
    }

    fn share(all: Vec<Item>, limit: usize) -> (Vec<Item>, usize) {
        fair_share(all, limit, |item| &item.0, |item| item.1, |item| item.2)
    }

    #[test]
    fn everything_is_shown_up_to_the_limit() {
        let all = vec![item("b", 2, 3), item("a", 1, 4)];
        assert_eq!(share(all.clone(), 7), (all, 0));
    }

    #[test]
    fn a_namespace_with_many_items_leaves_room_for_the_others() {
        let mut all: Vec<_> = (0..100).map(|name| item("flood", name, 1)).collect();
        all.extend([item("a", 7, 1), item("a", 8, 1), item("b", 9, 1)]);
        let (shown, omitted) = share(all, 10);
        let of =
            |namespace: &str| shown.iter().filter(|item| item.0 == namespace).map(|item| item.1).collect();
        let (flood, a, b): (Vec<_>, Vec<_>, Vec<_>) = (of("flood"), of("a"), of("b"));
        assert_eq!((flood, a, b), ((0..7).collect(), vec![7, 8], vec![9]));
        assert_eq!(omitted, 93);
    }

    #[test]
    fn the_first_by_order_come_first_and_the_limit_holds_whatever_items_cost() {
        let all = vec![item("a", 3, 5), item("a", 1, 5), item("a", 2, 5)];
        let (shown, omitted) = share(all, 14);
        assert_eq!(shown, [item("a", 1, 5), item("a", 2, 5)]);
        assert_eq!(omitted, 5);
    }
}
