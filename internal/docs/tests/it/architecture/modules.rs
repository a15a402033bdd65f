//! Finds cycles between the modules of a crate.
//!
//! A module depends on the module that defines what it names: imports, paths in code and paths within
//! macros, each followed through re-exports. The children of a module, each taken with its subtree, must
//! not depend on each other in a cycle. Code under `#[cfg(test)]` is left out.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, UseTree};

/// The files of a crate: path from its `src` → text.
pub(super) type Files = BTreeMap<String, String>;

/// Path of a module from the root of its crate, which is empty.
type ModulePath = Vec<String>;

#[derive(Default)]
struct Module {
    /// What it defines, child modules excepted.
    items: BTreeSet<String>,
    /// Imported name → path as written.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths of which everything is imported.
    globs: Vec<Vec<String>>,
    /// All paths in its code, imports included.
    paths: BTreeSet<Vec<String>>,
}

#[derive(Default)]
struct Modules(BTreeMap<ModulePath, Module>);

/// Describes each cycle: its modules, and the paths in code that close it.
pub(super) fn cycles(files: &Files) -> Vec<String> {
    let modules = Modules::parse(files);
    // Parent → dependencies between its children, with the paths that make them.
    let mut levels: BTreeMap<&[String], Dependencies> = BTreeMap::new();
    for (path, module) in &modules.0 {
        for written in &module.paths {
            let Some(target) = modules.resolve(path, written, 0) else { continue };
            // A use of an imported name depends on nothing more than the import.
            let import = module.imports.get(&written[0]).filter(|import| *import != written);
            if import
                .is_some_and(|import| modules.resolve(path, import, 0).as_ref() == Some(&target))
            {
                continue;
            }
            let common = path.iter().zip(&target).take_while(|(a, b)| a == b).count();
            if common < path.len() && common < target.len() {
                let children = (path[common].clone(), target[common].clone());
                let reason = format!("{} names {}", name(path), written.join("::"));
                let level = levels.entry(&path[..common]).or_default();
                level.entry(children).or_default().push(reason);
            }
        }
    }
    let mut found = Vec::new();
    for (parent, dependencies) in &levels {
        for cycle in strongly_connected(dependencies) {
            let members: Vec<_> = cycle.iter().map(|child| child.as_str()).collect();
            let mut text = format!("in {}, a cycle of {}", name(parent), members.join(", "));
            for ((from, to), reasons) in dependencies {
                if cycle.contains(from) && cycle.contains(to) {
                    text += &format!("\n    {from} → {to}: {}", reasons.join("; "));
                }
            }
            found.push(text);
        }
    }
    found
}

/// Dependencies between the children of one module, each with the paths in code that make it.
type Dependencies = BTreeMap<(String, String), Vec<String>>;

fn name(path: &[String]) -> String {
    std::iter::once("crate").chain(path.iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}

/// The sets of two or more nodes that reach each other.
fn strongly_connected(edges: &Dependencies) -> BTreeSet<BTreeSet<String>> {
    let reachable = |start: &String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![start]);
        while let Some(node) = left.pop() {
            let next = edges.keys().filter(|(from, _)| from == node).map(|(_, to)| to);
            left.extend(next.filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let nodes: BTreeSet<_> = edges.keys().map(|(from, _)| from).collect();
    let reached: BTreeMap<_, _> = nodes.into_iter().map(|node| (node, reachable(node))).collect();
    let on_cycles = reached.iter().filter(|(node, to)| to.contains(**node));
    let component = |(node, to): (&&String, &BTreeSet<String>)| {
        to.iter()
            .filter(|other| reached.get(other).is_some_and(|back| back.contains(*node)))
            .cloned()
            .collect()
    };
    on_cycles.map(component).collect()
}

impl Modules {
    fn parse(files: &Files) -> Self {
        let mut modules = Self::default();
        let root = ["lib.rs", "main.rs"].iter().find_map(|root| files.get(*root));
        modules.parse_file(files, Vec::new(), root.expect("a crate has a lib.rs or main.rs"));
        modules
    }

    fn parse_file(&mut self, files: &Files, path: ModulePath, text: &str) {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", name(&path)));
        self.parse_items(files, path, &file.items);
    }

    fn parse_items(&mut self, files: &Files, path: ModulePath, items: &[Item]) {
        self.0.entry(path.clone()).or_default();
        let mut collector = Collector { files, path: &path, modules: self };
        for item in items {
            collector.visit_item(item);
        }
    }

    /// The module that defines what a path names. `None` if it is of another crate, or no module's.
    fn resolve(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (first, rest) = path.split_first()?;
        let here = &self.0[from];
        match first.as_str() {
            "crate" | "$crate" => Some(self.descend(Vec::new(), rest, depth)),
            "self" => Some(self.descend(from.to_vec(), rest, depth)),
            "super" => {
                let parent = from[..from.len().checked_sub(1)?].to_vec();
                if rest.first().is_some_and(|next| next == "super") {
                    self.resolve(&parent, rest, depth)
                } else {
                    Some(self.descend(parent, rest, depth))
                }
            }
            // An import of its own name is of another crate: `use bytes::Bytes; Bytes::new()`.
            name if here.items.contains(name) => Some(from.to_vec()),
            name if self.is_child(from, name) => Some(self.descend(from.to_vec(), path, depth)),
            name => {
                let import = here.imports.get(name).filter(|import| import.as_slice() != path);
                let import = import.filter(|_| depth < 8)?;
                let whole: Vec<_> = import.iter().chain(rest).cloned().collect();
                self.resolve(from, &whole, depth + 1)
            }
        }
    }

    /// Follows a path from a module to the module that defines what it names.
    fn descend(&self, from: ModulePath, path: &[String], depth: usize) -> ModulePath {
        let Some((first, rest)) = path.split_first() else { return from };
        let module = &self.0[&from];
        if self.is_child(&from, first) {
            let child = from.iter().chain([first]).cloned().collect();
            return self.descend(child, rest, depth);
        }
        if module.items.contains(first) || depth >= 8 {
            return from;
        }
        if let Some(import) = module.imports.get(first) {
            let whole: Vec<_> = import.iter().chain(rest).cloned().collect();
            return self.resolve(&from, &whole, depth + 1).unwrap_or(from);
        }
        let through_glob = module.globs.iter().find_map(|glob| {
            let target = self.resolve(&from, glob, depth + 1)?;
            let found = self.descend(target.clone(), path, depth + 1);
            (found != target || self.0[&target].items.contains(first)).then_some(found)
        });
        through_glob.unwrap_or(from)
    }

    fn is_child(&self, parent: &[String], name: &str) -> bool {
        let child: Vec<_> =
            parent.iter().map(String::as_str).chain([name]).map(str::to_owned).collect();
        self.0.contains_key(&child)
    }
}

/// Collects what one module defines, imports and names.
struct Collector<'a> {
    files: &'a Files,
    path: &'a ModulePath,
    modules: &'a mut Modules,
}

impl Collector<'_> {
    fn module(&mut self) -> &mut Module {
        self.modules.0.get_mut(self.path).expect("entered before it is visited")
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String]) {
        let with = |name: &Ident| {
            let itself = name == "self" && !prefix.is_empty();
            let own = (!itself).then(|| name.to_string());
            prefix.iter().cloned().chain(own).collect::<Vec<_>>()
        };
        match tree {
            UseTree::Path(tree) => self.import(&tree.tree, &with(&tree.ident)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix)),
            UseTree::Glob(_) => {
                self.module().paths.insert(prefix.to_vec());
                self.module().globs.push(prefix.to_vec());
            }
            UseTree::Name(tree) => {
                let path = with(&tree.ident);
                self.add_import(path.last().cloned(), path);
            }
            UseTree::Rename(tree) => {
                self.add_import(Some(tree.rename.to_string()), with(&tree.ident));
            }
        }
    }

    fn add_import(&mut self, name: Option<String>, path: Vec<String>) {
        self.module().paths.insert(path.clone());
        self.module().imports.extend(name.map(|name| (name, path)));
    }

    /// Paths within a macro, which are tokens to the parser.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        // Colons since the last identifier: two join it to the next.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 && !path.is_empty() {
                        self.module().paths.insert(std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.tokens(group.stream());
                    colons = 0;
                }
                _ => colons = 0,
            }
        }
        if !path.is_empty() {
            self.module().paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Collector<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = describe(item);
        if is_test(attributes) {
            return;
        }
        let is_exported =
            attributes.iter().any(|attribute| attribute.path().is_ident("macro_export"));
        if let Some(name) = name.map(Ident::to_string) {
            if is_exported {
                let path = ["crate"].map(str::to_owned).into_iter().chain(self.path.clone());
                let path = path.chain([name.clone()]).collect();
                self.modules.0.entry(Vec::new()).or_default().imports.insert(name.clone(), path);
            }
            self.module().items.insert(name);
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let mut path = self.path.clone();
        path.push(item.ident.to_string());
        if let Some((_, items)) = &item.content {
            self.modules.parse_items(self.files, path, items);
        } else {
            let stem = path.join("/");
            let names = [format!("{stem}.rs"), format!("{stem}/mod.rs")];
            let text = names.iter().find_map(|name| self.files.get(name));
            self.modules.parse_file(self.files, path, text.unwrap_or_else(|| panic!("no {stem}")));
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &[]);
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        if !matches!(item, syn::ImplItem::Fn(method) if is_test(&method.attrs)) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string());
        self.module().paths.insert(segments.collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` names no dependency.
    }

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}

fn describe(item: &Item) -> (&[Attribute], Option<&Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Impl(item) => (&item.attrs, None),
        Item::Mod(item) => (&item.attrs, None),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

/// Whether the code is compiled for tests only: `#[cfg(test)]`, alone or within `all`.
fn is_test(attributes: &[Attribute]) -> bool {
    let has_test = |tokens: &TokenStream| {
        tokens
            .clone()
            .into_iter()
            .any(|token| matches!(token, TokenTree::Ident(name) if name == "test"))
    };
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.filter_map(|attribute| attribute.meta.require_list().ok()).any(|condition| {
        has_test(&condition.tokens)
            || condition
                .parse_args::<syn::MetaList>()
                .is_ok_and(|inner| inner.path.is_ident("all") && has_test(&inner.tokens))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Vec<String> {
        cycles(&files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    #[test]
    fn modules_that_depend_one_way_are_no_cycle() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; pub use b::B; fn f() { a::f(); }"),
            ("a.rs", "use crate::B; use bytes::Bytes; pub fn f() -> B { Bytes::new(); B }"),
            ("b.rs", "pub struct B; impl B { fn b(self) -> Self { Self } }"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_cycle_through_a_re_export_names_the_modules_and_the_imports() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; pub use b::B as Renamed;"),
            ("a.rs", "use crate::Renamed; pub fn f() {}"),
            ("b.rs", "pub struct B; fn g() { crate::a::f() }"),
        ]);
        assert_eq!(
            found,
            ["in crate, a cycle of a, b\n    \
              a → b: crate::a names crate::Renamed\n    \
              b → a: crate::b names crate::a::f"]
        );
    }

    #[test]
    fn a_cycle_between_nested_modules_is_found_where_it_is() {
        let found = of(&[
            ("lib.rs", "mod outer;"),
            ("outer/mod.rs", "mod a; pub(super) mod b { pub(super) use super::a::A; pub mod c; }"),
            ("outer/a.rs", "pub struct A; fn f() { super::b::c::C; }"),
            ("outer/b/c.rs", "pub struct C; fn f(a: super::A) {}"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("in crate::outer, a cycle of a, b\n"), "{}", found[0]);
        assert!(found[0].contains("crate::outer::b::c names super::A"), "{}", found[0]);
    }

    #[test]
    fn a_longer_cycle_is_found_through_globs_macros_and_imported_modules() {
        let found = of(&[
            ("lib.rs", "mod a; mod b; mod c; mod names { pub use crate::b::*; }"),
            (
                "a.rs",
                "use crate::names; fn f() { names::g(); } #[macro_export] macro_rules! m { () => {} }",
            ),
            ("b.rs", "pub fn g() { tokio::select! { _ = later() => { crate::c::h(1) } } }"),
            ("c.rs", "pub fn h() { crate::m!(); }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("in crate, a cycle of a, b, c, names\n"), "{}", found[0]);
    }

    #[test]
    fn code_of_tests_is_left_out() {
        let found = of(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; #[cfg(all(feature = \"x\", test))] mod tests;"),
            (
                "b.rs",
                "pub struct B; #[cfg(test)] use crate::a; #[cfg(not(test))] struct C; \
                      impl B { #[cfg(test)] fn f() { crate::a::f() } }",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
