//! `#[derive(Module)]` and `#[derive(Nested)]`: a struct's parameters and tensors are found by its fields.

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Code;
use quote::{format_ident, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Attribute, Data, DeriveInput, Field, Fields, Ident, LitStr, Token, parse_macro_input};

/// Makes a struct a module whose children are its fields, under the fields' names.
///
/// Every field is a module itself: a layer, a `Param`, a `Buffer`, another module, or a `Vec`, `Option`, `BTreeMap` or
/// `Unit` of them. `#[module(skip)]` leaves a field out (a number, a shared table); `#[module(name = "h")]` gives it another name
/// in paths, `#[module(name = "")]` none.
#[proc_macro_derive(Module, attributes(module))]
pub fn module(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    module_of(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

/// Makes a struct or an enum a value that holds tensors: every field is one itself.
#[proc_macro_derive(Nested)]
pub fn nested(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    nested_of(input).unwrap_or_else(|error| error.to_compile_error()).into()
}

fn module_of(input: DeriveInput) -> syn::Result<Code> {
    let Data::Struct(data) = &input.data else {
        return Err(syn::Error::new_spanned(&input.ident, "Module can be derived for structs"));
    };
    let mut children = Vec::new();
    for (index, field) in data.fields.iter().enumerate() {
        let Spelling { skip, name } = Spelling::of(&field.attrs)?;
        if skip {
            continue;
        }
        let member = member(index, field);
        let name = name.unwrap_or_else(|| match &field.ident {
            Some(ident) => ident.to_string().trim_start_matches("r#").to_owned(),
            None => index.to_string(),
        });
        // At the field's type, where the compiler then says that it is no module.
        let at = field.ty.span();
        children.push(quote_spanned! { at=> visitor.child(#name, &self.#member); });
    }
    let (own, (generics, types, bounds)) = (&input.ident, input.generics.split_for_impl());
    Ok(quote! {
        impl #generics ::oarlock::nn::Module for #own #types #bounds {
            fn visit(&self, visitor: &mut dyn ::oarlock::nn::Visitor) {
                #(#children)*
            }
        }
    })
}

/// What stands in `#[module(..)]`.
#[derive(Default)]
struct Spelling {
    skip: bool,
    name: Option<String>,
}

impl Spelling {
    fn of(attributes: &[Attribute]) -> syn::Result<Spelling> {
        let mut found = Spelling::default();
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("module")) {
            attribute.parse_nested_meta(|meta| {
                if meta.path.is_ident("skip") {
                    found.skip = true;
                    return Ok(());
                }
                if meta.path.is_ident("name") {
                    found.name = Some(meta.value()?.parse::<LitStr>()?.value());
                    return Ok(());
                }
                Err(meta.error("here stands `skip` or `name = \"..\"`"))
            })?;
        }
        Ok(found)
    }
}

fn member(index: usize, field: &Field) -> Code {
    match &field.ident {
        Some(ident) => quote! { #ident },
        None => {
            let index = syn::Index::from(index);
            quote! { #index }
        }
    }
}

fn nested_of(input: DeriveInput) -> syn::Result<Code> {
    let own = &input.ident;
    let arms: Vec<Code> = match &input.data {
        Data::Struct(data) => vec![arm(quote! { #own }, &data.fields)],
        Data::Enum(data) => {
            let arm = |variant: &syn::Variant| {
                let name = &variant.ident;
                arm(quote! { #own::#name }, &variant.fields)
            };
            data.variants.iter().map(arm).collect()
        }
        Data::Union(_) => return Err(syn::Error::new_spanned(own, "Nested cannot be derived for unions")),
    };
    let mut bounded = input.generics.clone();
    for parameter in bounded.type_params_mut() {
        parameter.bounds.push(syn::parse_quote!(::oarlock::Nested));
    }
    let (generics, _, bounds) = bounded.split_for_impl();
    let (_, types, _) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::oarlock::Nested for #own #types #bounds {
            fn map_tensors(
                &self,
                f: &mut dyn FnMut(&::oarlock::Tensor) -> ::oarlock::Result<::oarlock::Tensor>,
            ) -> ::oarlock::Result<Self> {
                Ok(match self { #(#arms)* })
            }
        }
    })
}

/// One shape of a value: its fields taken apart, mapped, and put together.
fn arm(path: Code, fields: &Fields) -> Code {
    let names: Vec<Ident> = fields
        .iter()
        .enumerate()
        .map(|(index, field)| field.ident.clone().unwrap_or_else(|| format_ident!("field_{index}")))
        .collect();
    let names: Punctuated<Ident, Token![,]> = names.into_iter().collect();
    let mapped = names.iter().map(|name| quote! { let #name = ::oarlock::Nested::map_tensors(#name, f)?; });
    let whole = match fields {
        Fields::Named(_) => quote! { #path { #names } },
        Fields::Unnamed(_) => quote! { #path(#names) },
        Fields::Unit => quote! { #path },
    };
    quote! { #whole => { #(#mapped)* #whole } }
}
